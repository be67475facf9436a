// Controls that every page has: check boxes for the state, and buttons that zoom all plots of time.

function checkbox(name, label) {
  const input = h("input", { type: "checkbox", id: name, onchange: (event) => choose({ [name]: event.target.checked }) });
  input.checked = state[name];
  return h("label", {}, input, " ", label);
}

/** Zoom in and out around `now()`, called `moment`, and back to all of `whole`. */
function zoomButtons(whole, moment, now) {
  const button = (id, label, sign, onclick) => h("button", { type: "button", id, "aria-label": label, title: label, onclick }, sign);
  const reset = button("zoom-reset", `Show all of ${whole}`, "Show all", () => timeZoom.set(null));
  timeZoom.followers.push(() => (reset.disabled = !timeZoom.range));
  reset.disabled = true;
  return h(
    "span",
    { class: "zooms", role: "group", "aria-label": "Zoom" },
    button("zoom-in", `Zoom in around the chosen ${moment}`, "+", () => timeZoom.by(2, now())),
    button("zoom-out", "Zoom out", "−", () => timeZoom.by(0.5, now())),
    reset,
  );
}
