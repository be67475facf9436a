// What the reader has chosen, and the controls that both pages have: ordinary inputs and buttons.

import { h } from "./dom.js";

export const state = {};
const listeners = [];

/** Call `update` now and whenever one of the named choices changes. */
export function watch(names, update) {
  listeners.push([names, update]);
  update();
}

export function choose(changes) {
  const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
  Object.assign(state, changes);
  for (const [names, update] of listeners) {
    if (names.some((name) => changed.includes(name))) update();
  }
}

/** A range of x that several plots share; null is everything. */
export class Zoom {
  range = null;
  full = [0, 1];
  followers = [];

  set(range) {
    const [low, high] = this.full;
    const clipped = range && [Math.max(low, range[0]), Math.min(high, range[1])];
    if (clipped && clipped[1] - clipped[0] < 1e-6 * (high - low)) return;
    const whole = !clipped || clipped[1] - clipped[0] >= 0.999 * (high - low);
    this.range = whole ? null : clipped;
    this.followers.forEach((follow) => follow());
  }

  /** Zoom by a factor around x, which stays where it is. */
  by(factor, x) {
    const [low, high] = this.range ?? this.full;
    const centre = Math.min(high, Math.max(low, x ?? (low + high) / 2));
    this.set([centre - (centre - low) / factor, centre + (high - centre) / factor]);
  }
}

export function checkbox(name, label) {
  const onchange = (event) => choose({ [name]: event.target.checked });
  return h("label", {}, h("input", { type: "checkbox", id: name, checked: state[name], onchange }), " ", label);
}

/** A list to choose `state[name]` from: `options()` gives [value, text], anew when one of the choices `on` changes. */
export function select(name, words, options, more = {}) {
  const { on = [], read = () => state[name], pick = (value) => choose({ [name]: value }) } = more;
  const list = h("select", { id: name, onchange: () => pick(options()[list.selectedIndex][0]) });
  watch(on, () => list.replaceChildren(...options().map(([value, text]) => h("option", { value }, text))));
  watch([name, ...on], () => (list.selectedIndex = options().findIndex(([value]) => value === read())));
  return h("label", {}, words, list);
}

export function button(id, label, text, onclick) {
  return h("button", { type: "button", id, "aria-label": label, title: label, onclick }, text);
}

/** Zoom in and out around `now()`, and back to everything. */
export function zoomButtons(zoom, now) {
  const reset = button("zoom-reset", "Show all of the time", "Show all", () => zoom.set(null));
  zoom.followers.push(() => (reset.disabled = !zoom.range));
  reset.disabled = true;
  const zoomIn = button("zoom-in", "Zoom in around the chosen time", "+", () => zoom.by(2, now()));
  const zoomOut = button("zoom-out", "Zoom out", "−", () => zoom.by(0.5, now()));
  return h("span", { class: "zooms", role: "group", "aria-label": "Zoom" }, zoomIn, zoomOut, reset);
}

/**
 * A slider with its output, and a button that plays it from start to end in some seconds.
 * `on` are the choices that it shows; `read()` gives {value, max, step, text, words}; `pick(value)` chooses.
 */
export function slider(id, label, seconds, on, read, pick) {
  const oninput = () => choose({ ...pick(Number(input.value)), playing: false });
  const input = h("input", { type: "range", id, min: 0, "aria-label": label, oninput });
  const shown = h("output", { for: id });
  watch(on, () => {
    const { value, max, step, text, words } = read();
    Object.assign(input, { max, step, value });
    input.setAttribute("aria-valuetext", words);
    shown.replaceChildren(text);
  });

  let share = 0;
  let before = 0;
  const tick = (stamp) => {
    if (!state.playing) return;
    share = Math.min(1, share + Math.max(0, stamp - before) / 1000 / seconds);
    before = stamp;
    choose({ ...pick(share * read().max), playing: share < 1 });
    requestAnimationFrame(tick);
  };
  const onclick = () => {
    const { value, max, step } = read();
    share = (value / Math.max(max, step)) % 1; // at the end, from the start again
    before = performance.now();
    choose({ playing: !state.playing });
    requestAnimationFrame(tick);
  };
  const play = h("button", { type: "button", id: "play", onclick });
  watch(["playing"], () => {
    play.replaceChildren(state.playing ? "Pause" : "Play");
    play.setAttribute("aria-pressed", state.playing);
  });
  return { input, play, shown };
}
