// Controls that both pages have: ordinary inputs and buttons, so that keys and screen readers work as usual.

import { h } from "./dom.js";
import { choose, state, watch } from "./state.js";

export function button(id, label, sign, onclick) {
  return h("button", { type: "button", id, "aria-label": label, title: label, onclick }, sign);
}

export function checkbox(name, label) {
  const onchange = (event) => choose({ [name]: event.target.checked });
  const input = h("input", { type: "checkbox", id: name, onchange });
  input.checked = state[name];
  return h("label", {}, input, " ", label);
}

/** A list to choose `state[name]` from: `options()` gives [value, text], anew when one of the choices `on` changes. */
export function select(name, words, options, more) {
  const { on = [], id = name, read = () => state[name], pick = (value) => choose({ [name]: value }) } = more;
  const list = h("select", { id });
  list.addEventListener("change", () => pick(options()[list.selectedIndex][0]));
  watch(on, () => list.replaceChildren(...options().map(([value, text]) => h("option", { value }, text))));
  watch([name, ...on], () => (list.selectedIndex = options().findIndex(([value]) => value === read())));
  return h("label", {}, words, list);
}

/** Zoom in and out around `now()`, called `moment`, and back to all of `whole`. */
export function zoomButtons(zoom, whole, moment, now) {
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

/**
 * A slider with its output, and a button that plays it from start to end in some seconds.
 * `on` are the choices that it shows; `read()` gives {value, max, step, text, words}; `pick(value)` chooses.
 */
export function slider(id, label, seconds, on, read, pick) {
  const input = h("input", { type: "range", id, min: 0, "aria-label": label });
  const shown = h("output", { for: id });
  input.addEventListener("input", () => choose({ ...pick(Number(input.value)), playing: false }));
  watch(on, () => {
    const { value, max, step, text, words } = read();
    Object.assign(input, { max, step, value });
    input.setAttribute("aria-valuetext", words);
    shown.replaceChildren(text);
  });

  const play = h("button", { type: "button", id: "play" });
  let before = null;
  let share = 0;
  const tick = (stamp) => {
    if (!state.playing) return;
    share += (before === null ? 0 : stamp - before) / 1000 / seconds;
    before = stamp;
    choose({ ...pick(Math.min(share, 1) * read().max), playing: share < 1 });
    requestAnimationFrame(tick);
  };
  play.addEventListener("click", () => {
    const playing = !state.playing;
    const now = read().value / Math.max(read().max, read().step);
    before = null;
    share = playing && now >= 1 ? 0 : now;
    choose({ ...pick(share * read().max), playing });
    requestAnimationFrame(tick);
  });
  watch(["playing"], () => {
    play.replaceChildren(state.playing ? "Pause" : "Play");
    play.setAttribute("aria-pressed", state.playing);
  });
  return { input, play, shown };
}

/** The button between the light and the dark page; at first the page is as the system has it. */
export function themeButton() {
  const theme = document.getElementById("theme");
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const name = () => theme.replaceChildren(dark() ? "Light page" : "Dark page");
  theme.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    name();
  });
  system.addEventListener("change", name);
  theme.hidden = false;
  name();
}
