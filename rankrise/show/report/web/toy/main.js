// The page of toy runs: its controls, and everything in its place.

import { button, checkbox, select, slider, themeButton, zoomButtons } from "../controls.js";
import { payload } from "../data.js";
import { fixed, h, scaleText } from "../dom.js";
import { choose, state } from "../state.js";
import { convergence, descent, fullWeights, glance, perturbations } from "./experiments.js";
import { timeZoom } from "./plots.js";
import { Run } from "./run.js";
import { stages, stageTable } from "./stages.js";

const SECONDS_TO_PLAY = 24;

const runs = payload().runs.map((record) => new Run(record));
Object.assign(state, { staircase: true, logLoss: false, playing: false });
themeButton();
controls();
stages(runs);
glance(runs);
stageTable(runs);
convergence(runs);
descent(runs);
fullWeights(runs);
perturbations(runs);
document.documentElement.dataset.ready = "yes";

function controls() {
  const seeds = runs.flatMap((run) => [...run.seeds.values()]);
  const paths = seeds.flatMap((seed) => [...seed.flows.values(), ...seed.descents]);
  const alphas = [...new Set(paths.map((path) => path.log10_alpha))].sort((a, b) => b - a);
  const shared = alphas.filter((alpha) => seeds.every((seed) => seed.flows.has(alpha)));
  const names = [...new Set(runs.flatMap((run) => [...run.seeds.keys()]))];
  state.alpha = shared.at(-1) ?? alphas.at(-1) ?? null;
  state.seed = names[0] ?? null;
  state.time = longestPlateau(runs[0]);
  timeZoom.full = [0, Math.max(...seeds.map((seed) => seed.until), seeds.length ? 0 : 1)];

  const seedChoice = select("seed", "Seed ", () => names.map((name) => [name, name]), {});
  seedChoice.hidden = names.length < 2;
  document.getElementById("choices").append(alphaChoice(alphas), seedChoice, timeChoice());
  document.getElementById("view").append(
    checkbox("staircase", "Algorithm 1 (dashed)"),
    checkbox("logLoss", "loss on a log scale"),
    zoomButtons(timeZoom, "rescaled time", "time", () => state.time),
  );
}

/** The slider starts on the longest plateau between two stages. */
function longestPlateau({ seed }) {
  const times = seed?.staircase.times ?? [];
  const lengths = times.slice(1).map((time, index) => time - times[index]);
  const longest = lengths.indexOf(Math.max(...lengths));
  return lengths.length ? (times[longest] + times[longest + 1]) / 2 : 0;
}

function alphaChoice(alphas) {
  const radios = alphas.map((alpha) => {
    const input = h("input", { type: "radio", name: "alpha", value: alpha, onchange: () => choose({ alpha }) });
    input.checked = alpha === state.alpha;
    return h("label", {}, input, h("span", {}, scaleText(alpha)));
  });
  return h("fieldset", { class: "alphas" }, h("legend", {}, "Initialisation scale ", h("var", {}, "α")), radios);
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
    const times = runs.flatMap((run) => run.seed?.staircase.middles ?? []).sort((a, b) => a - b);
    const near = 1e-9 * end;
    const after = times.find((time) => time > state.time + near) ?? end;
    const before = times.findLast((time) => time < state.time - near) ?? 0;
    choose({ time: forward ? after : before, playing: false });
  };
  const back = button("before", "To the plateau before", "‹", jump(false));
  const next = button("after", "To the next plateau", "›", jump(true));
  return h("div", { class: "time" }, back, play, next, input, shown);
}
