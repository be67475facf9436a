// Controls that every page has: check boxes for the state, and buttons that zoom all plots of time.

import { h } from "./dom.js";
import { choose, state } from "./state.js";

export function checkbox(name, label) {
  const input = h("input", { type: "checkbox", id: name, onchange: (event) => choose({ [name]: event.target.checked }) });
  input.checked = state[name];
  return h("label", {}, input, " ", label);
}

/** Zoom in and out around `now()`, called `moment`, and back to all of `whole`. */
export function zoomButtons(zoom, whole, moment, now) {
  const button = (id, label, sign, onclick) => h("button", { type: "button", id, "aria-label": label, title: label, onclick }, sign);
  const reset = button("zoom-reset", `Show all of ${whole}`, "Show all", () => zoom.set(null));
  zoom.followers.push(() => (reset.disabled = !zoom.range));
  reset.disabled = true;
  return h(
    "span",
    { class: "zooms", role: "group", "aria-label": "Zoom" },
    button("zoom-in", `Zoom in around the chosen ${moment}`, "+", () => zoom.by(2, now())),
    button("zoom-out", "Zoom out", "−", () => zoom.by(0.5, now())),
    reset,
  );
}
