// The page of tracked runs: its controls, and everything in its place.

import { checkbox, choose, select, slider, state, watch, zoomButtons } from "../controls.js";
import { h } from "../dom.js";
import { leading, spectra, stages, training } from "./curves.js";
import { beside, heads, ranks, runList } from "./ranks.js";
import { here, runs, showRun, timeZoom } from "./run.js";

const SECONDS_TO_PLAY = 15;

Object.assign(state, { rank: "stable", playing: false });
Object.assign(state, { logTime: true, logLoss: false, normalised: true, logValues: false });
controls();
for (const draw of [ranks, heads, spectra, leading, training, stages, runList, beside]) draw();
watch(["run", "logTime"], () => timeZoom.set(null)); // after the plots have taken up their new axes
document.documentElement.dataset.ready = "yes";

function controls() {
  watch(["run", "logTime"], () => {
    const { times } = here();
    timeZoom.range = null;
    timeZoom.full = [state.logTime ? (times.find((time) => time > 0) ?? 0.1) : 0, times.at(-1) ?? 1];
  });
  const ofRun = select("run", "Run ", () => runs.map(({ name }, index) => [index, name]), { pick: showRun });
  ofRun.hidden = runs.length < 2;
  const rankKinds = () => Object.keys(here().kinds).map((kind) => [kind, kind]);
  const kinds = select("rank", "Rank ", rankKinds, { on: ["run"], read: () => here().kind });
  kinds.hidden = runs.every((run) => Object.keys(run.kinds).length < 2);

  const layers = () => [[-1, "all layers"], ...here().layers.map(({ title }, layer) => [layer, title])];
  const ofLayer = select("layer", "Layer ", layers, { on: ["run"], pick: (layer) => choose({ layer, head: -1 }) });
  const slots = () => here().layers[state.layer]?.heads ?? [];
  const headsOf = () => [[-1, "mean over heads"], ...slots().map((head, slot) => [slot, `head ${head + 1}`])];
  const ofHead = select("head", "Head ", headsOf, { on: ["run", "layer"] });
  watch(["layer"], () => (ofHead.querySelector("select").disabled = state.layer < 0));
  watch(["run"], () => [ofLayer, ofHead].forEach((choice) => (choice.hidden = !here().layers.length)));

  const shownStep = () => {
    const text = here().empty ? "no ranks" : here().now;
    return { value: state.place, max: Math.max(0, here().steps.length - 1), step: 1, text, words: text };
  };
  const pick = (place) => ({ place: Math.round(place) });
  const parts = slider("step", "Measured step", SECONDS_TO_PLAY, ["run", "place"], shownStep, pick);
  const time = h("div", { class: "time steps" }, parts.play, parts.input, parts.shown);

  document.getElementById("choices").append(ofRun, kinds, ofLayer, ofHead, time);
  document.getElementById("view").append(
    checkbox("logTime", "time on a log scale"),
    checkbox("logLoss", "loss on a log scale"),
    checkbox("normalised", "spectra over their largest"),
    checkbox("logValues", "spectra on a log scale"),
    zoomButtons(timeZoom, () => here().times[state.place]),
  );
}
