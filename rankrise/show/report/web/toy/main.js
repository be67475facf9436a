// The page of toy runs: its controls, and everything in its place.

import { button, checkbox, choose, select, slider, state, zoomButtons } from "../controls.js";
import { highest } from "../data.js";
import { fixed, h, scaleText } from "../dom.js";
import { convergence, descent, fullWeights, glance, perturbations } from "./experiments.js";
import { runs, timeZoom } from "./run.js";
import { stages, stageTable } from "./stages.js";

const SECONDS_TO_PLAY = 24;

Object.assign(state, { staircase: true, logLoss: false, playing: false });
controls();
for (const draw of [stages, glance, stageTable, convergence, descent, fullWeights, perturbations]) draw();
document.documentElement.dataset.ready = "yes";

function controls() {
  const seeds = runs.flatMap((run) => [...run.seeds.values()]);
  const names = [...new Set(runs.flatMap((run) => [...run.seeds.keys()]))];
  const paths = seeds.flatMap(({ flows, descents }) => [...flows, ...descents]);
  const alphas = [...new Set(paths.map((path) => path.log10_alpha))].sort((a, b) => b - a);
  const shared = alphas.filter((alpha) => seeds.every(({ flows }) => flows.some((flow) => flow.log10_alpha === alpha)));
  state.alpha = shared.at(-1) ?? alphas.at(-1) ?? null;
  state.seed = names[0] ?? null;
  timeZoom.full = [0, highest(seeds.map((seed) => seed.until).concat(seeds.length ? [] : [1]))];
  // The slider starts on the longest plateau between two stages.
  const times = runs[0].seed?.times ?? [];
  const longest = highest(times.slice(1).map((time, index) => time - times[index]));
  const end = times.findIndex((time, index) => time - times[index - 1] === longest);
  state.time = end > 0 ? (times[end - 1] + times[end]) / 2 : 0;

  const radios = alphas.map((alpha) => {
    const onchange = () => choose({ alpha });
    const input = h("input", { type: "radio", name: "alpha", value: alpha, checked: alpha === state.alpha, onchange });
    return h("label", {}, input, h("span", {}, scaleText(alpha)));
  });
  const legend = h("legend", {}, "Initialisation scale ", h("var", {}, "α"));
  const alphaChoice = h("fieldset", { class: "alphas" }, legend, radios);
  const seedChoice = select("seed", "Seed ", () => names.map((name) => [name, name]));
  seedChoice.hidden = names.length < 2;
  document.getElementById("choices").append(alphaChoice, seedChoice, timeChoice());
  document.getElementById("view").append(
    checkbox("staircase", "Algorithm 1 (dashed)"),
    checkbox("logLoss", "loss on a log scale"),
    zoomButtons(timeZoom, () => state.time),
  );
}

function timeChoice() {
  const end = timeZoom.full[1];
  const read = () => {
    const text = fixed(state.time, 3);
    return { value: state.time, max: end, step: end / 500, text, words: `rescaled time ${text}` };
  };
  const on = ["time", "seed"];
  const { input, play, shown } = slider("time", "Rescaled time", SECONDS_TO_PLAY, on, read, (time) => ({ time }));
  const jump = (forward) => () => {
    const edges = [0, ...(runs[0].seed?.times ?? []), end];
    const middles = edges.slice(1).map((edge, index) => (edges[index] + edge) / 2);
    const after = middles.find((time) => time > state.time + 1e-9) ?? end;
    const before = middles.findLast((time) => time < state.time - 1e-9) ?? 0;
    choose({ time: forward ? after : before, playing: false });
  };
  const back = button("before", "To the plateau before", "‹", jump(false));
  const next = button("after", "To the next plateau", "›", jump(true));
  return h("div", { class: "time" }, back, play, next, input, shown);
}
