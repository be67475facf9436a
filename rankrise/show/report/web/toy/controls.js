// α, seed, time and view: ordinary inputs and buttons, so that keys and screen readers work as everywhere.

import { checkbox, zoomButtons } from "../choices.js";
import { fixed, h, scaleText } from "../dom.js";
import { playButton } from "../play.js";
import { choose, state, watch } from "../state.js";
import { timeZoom } from "./clock.js";

const SECONDS_TO_PLAY = 24;

Object.assign(state, { alpha: null, seed: null, time: 0, staircase: true, logLoss: false, playing: false });

export function controls(runs) {
  const seeds = runs.flatMap((run) => [...run.seeds.values()]);
  const paths = seeds.flatMap((seed) => [...seed.flows.keys(), ...seed.descents.map((descent) => descent.log10Alpha)]);
  const alphas = [...new Set(paths)].sort((a, b) => b - a);
  const names = [...new Set(runs.flatMap((run) => [...run.seeds.keys()]))];
  state.alpha = startingScale(alphas, seeds);
  state.seed = names[0] ?? null;
  state.time = longestPlateau(runs[0]);
  const plateaus = () => runs.flatMap((run) => run.seed?.staircase.middles ?? []).sort((a, b) => a - b);

  document.getElementById("choices").append(alphaChoice(alphas), ...seedChoice(names), timeChoice(plateaus));
  document.getElementById("view").append(...viewChoices());
}

/** The smallest α that every seed of every run has, or the smallest of all. */
function startingScale(alphas, seeds) {
  const shared = alphas.filter((alpha) => seeds.every((seed) => seed.flows.has(alpha)));
  return shared[shared.length - 1] ?? alphas[alphas.length - 1] ?? null;
}

function alphaChoice(alphas) {
  const radios = alphas.map((alpha) => {
    const input = h("input", { type: "radio", name: "alpha", value: alpha, onchange: () => choose({ alpha }) });
    input.checked = alpha === state.alpha;
    return h("label", {}, input, h("span", {}, scaleText(alpha)));
  });
  return h("fieldset", { class: "alphas" }, h("legend", {}, "Initialisation scale ", h("var", {}, "α")), radios);
}

function seedChoice(names) {
  if (names.length < 2) return [];
  const options = names.map((name) => h("option", { value: name }, name));
  const select = h("select", { id: "seed", onchange: (event) => choose({ seed: event.target.value }) }, options);
  return [h("label", { class: "seeds" }, "Seed ", select)];
}

/** Where the slider starts: on the longest plateau after the first stage and before the last. */
function longestPlateau(run) {
  const times = run.seed?.staircase.times ?? [];
  const lengths = times.slice(1).map((time, index) => time - times[index]);
  const longest = lengths.indexOf(Math.max(...lengths));
  return lengths.length ? (times[longest] + times[longest + 1]) / 2 : 0;
}

function timeChoice(plateaus) {
  const end = timeZoom.full[1];
  const slider = h("input", { type: "range", id: "time", min: 0, max: end, step: end / 500, "aria-label": "Rescaled time" });
  const shown = h("output", { for: "time" });
  slider.addEventListener("input", () => choose({ time: Number(slider.value), playing: false }));
  watch(["time", "seed"], () => {
    slider.value = state.time;
    shown.replaceChildren(fixed(state.time, 3));
    slider.setAttribute("aria-valuetext", `rescaled time ${fixed(state.time, 3)}`);
  });
  const jump = (forward) => () => {
    const times = plateaus();
    const near = 1e-9 * end;
    const target = forward
      ? times.find((time) => time > state.time + near)
      : times.findLast((time) => time < state.time - near);
    choose({ time: target ?? (forward ? end : 0), playing: false });
  };
  const button = (id, label, sign, onclick) => h("button", { type: "button", id, "aria-label": label, title: label, onclick }, sign);
  return h(
    "div",
    { class: "time" },
    button("before", "To the plateau before", "‹", jump(false)),
    playButton(SECONDS_TO_PLAY, () => state.time / end, (share) => ({ time: share * end })),
    button("after", "To the next plateau", "›", jump(true)),
    slider,
    shown,
  );
}

function viewChoices() {
  return [
    checkbox("staircase", "Algorithm 1 (dashed)"),
    checkbox("logLoss", "loss on a log scale"),
    zoomButtons(timeZoom, "rescaled time", "time", () => state.time),
  ];
}
