// Play: time that moves on by itself until it is paused or has come to its end.

import { h } from "./dom.js";
import { choose, state, watch } from "./state.js";

/** A button that takes `seconds` from start to end: `now()` is the share of the way behind, `choices(share)` what to choose there. */
export function playButton(seconds, now, choices) {
  const button = h("button", { type: "button", id: "play" });
  let before = null;
  let share = 0;
  const tick = (stamp) => {
    if (!state.playing) return;
    share += (before === null ? 0 : stamp - before) / 1000 / seconds;
    before = stamp;
    choose({ ...choices(Math.min(share, 1)), playing: share < 1 });
    requestAnimationFrame(tick);
  };
  button.addEventListener("click", () => {
    const playing = !state.playing;
    before = null;
    share = playing && now() >= 1 ? 0 : now();
    choose({ ...choices(share), playing });
    requestAnimationFrame(tick);
  });
  watch(["playing"], () => {
    button.replaceChildren(state.playing ? "Pause" : "Play");
    button.setAttribute("aria-pressed", state.playing);
  });
  return button;
}
