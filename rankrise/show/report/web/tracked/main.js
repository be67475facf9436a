// The page of tracked runs: its controls, and everything in its place.

import { checkbox, select, slider, themeButton, zoomButtons } from "../controls.js";
import { payload } from "../data.js";
import { h } from "../dom.js";
import { choose, state, watch } from "../state.js";
import { glance, heads, ranks } from "./ranks.js";
import { here, present, Run, timeZoom } from "./run.js";
import { beside, runList } from "./several.js";
import { leading, remains, spectra } from "./spectra.js";
import { stages, training } from "./training.js";

const SECONDS_TO_PLAY = 15;

const { runs: records, first } = payload();
const runs = records.map((record) => new Run(record));
present(runs);
Object.assign(state, { rank: "stable", playing: false });
Object.assign(state, { logTime: true, logLoss: false, normalised: true, logValues: false });
Object.assign(state, beginning(first));
themeButton();
controls();
glance();
ranks();
heads();
spectra();
leading();
remains(runs);
training(runs);
stages();
runList(runs, beginning);
beside(runs);
watch(["run", "logTime"], () => timeZoom.set(null)); // after the plots have taken up their new axes
document.documentElement.dataset.ready = "yes";

/** What to choose to show a run from its last step on, with every layer. */
function beginning(run) {
  return { run, place: Math.max(0, runs[run].steps.length - 1), layer: -1, head: -1 };
}

function controls() {
  watch(["run", "logTime"], () => {
    const { times } = here();
    timeZoom.range = null;
    timeZoom.full = [state.logTime ? (times.find((time) => time > 0) ?? 0.1) : 0, times.at(-1) ?? 1];
  });
  const kinds = select("rank", "Rank ", () => Object.keys(here().kinds).map((kind) => [kind, kind]), {
    on: ["run"],
    read: () => here().kind,
  });
  kinds.hidden = runs.every((run) => Object.keys(run.kinds).length < 2);
  document.getElementById("choices").append(runChoice("run", "Run "), kinds, layerChoice(), headChoice(), stepChoice());
  document.getElementById("view").append(
    checkbox("logTime", "time on a log scale"),
    checkbox("logLoss", "loss on a log scale"),
    checkbox("normalised", "spectra over their largest"),
    checkbox("logValues", "spectra on a log scale"),
    zoomButtons(timeZoom, "training", "step", () => here().times[state.place]),
  );
  const above = runChoice("run-above", `The plots show one run of ${runs.length}: `);
  document.getElementById("glance-here").append(h("div", { class: "chosen-run", hidden: above.hidden }, above));
}

function runChoice(id, words) {
  const pick = (run) => choose({ ...beginning(run), layer: Math.min(state.layer, runs[run].layers.length - 1) });
  const choice = select("run", words, () => runs.map(({ name }, index) => [index, name]), { id, pick });
  choice.hidden = runs.length < 2;
  return choice;
}

function layerChoice() {
  const options = () => [[-1, "all layers"], ...here().layers.map(({ title }, layer) => [layer, title])];
  const pick = (layer) => choose({ layer, head: -1 });
  return ofHeads(select("layer", "Layer ", options, { on: ["run"], pick }));
}

function headChoice() {
  const slots = () => (state.layer < 0 ? [] : here().layers[state.layer].heads);
  const options = () => [[-1, "mean over heads"], ...slots().map((head, slot) => [slot, `head ${head + 1}`])];
  const choice = select("head", "Head ", options, { on: ["run", "layer"] });
  watch(["layer"], () => (choice.querySelector("select").disabled = state.layer < 0));
  return ofHeads(choice);
}

/** A choice that a run without heads does not have. */
function ofHeads(choice) {
  watch(["run"], () => (choice.hidden = !here().layers.length));
  return choice;
}

function stepChoice() {
  const last = () => Math.max(0, here().steps.length - 1);
  const read = () => {
    const text = here().empty ? "no ranks" : here().moment(here().steps[state.place]);
    return { value: state.place, max: last(), step: 1, text, words: text };
  };
  const pick = (place) => ({ place: Math.round(place) });
  const { input, play, shown } = slider("step", "Measured step", SECONDS_TO_PLAY, ["run", "place"], read, pick);
  return h("div", { class: "time steps" }, play, input, shown);
}
