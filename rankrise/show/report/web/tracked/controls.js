// Run, layer, head, step and view: ordinary inputs and buttons, so that keys and screen readers work as everywhere.

import { checkbox, zoomButtons } from "../choices.js";
import { h } from "../dom.js";
import { playButton } from "../play.js";
import { choose, state, watch } from "../state.js";
import { timeZoom } from "./clock.js";
import { here, present } from "./runs.js";

const SECONDS_TO_PLAY = 15;

const SCALES = { logTime: true, logLoss: false, normalised: true, logValues: false };

Object.assign(state, { run: 0, rank: "stable", layer: -1, head: -1, place: 0, playing: false, ...SCALES });

export function controls(runs, first) {
  present(runs);
  Object.assign(state, { run: first, place: Math.max(0, runs[first].steps.length - 1) });
  watch(["run", "logTime"], () => {
    const { times } = here();
    timeZoom.full = [state.logTime ? (times[0] ?? 0.1) : 0, times[times.length - 1] ?? 1];
    timeZoom.set(null);
  });
  document.getElementById("choices").append(...runChoice(runs), ...rankChoice(runs), layerChoice(), headChoice(), stepChoice());
  document.getElementById("view").append(...viewChoices());
}

/** A list to choose the run that the whole page shows; nothing where there is one. */
export function runChoice(runs, id = "run", words = "Run ") {
  if (runs.length < 2) return [];
  const options = runs.map((run, index) => h("option", { value: index }, run.name));
  const select = h("select", { id }, options);
  select.addEventListener("change", () => {
    const run = runs[select.value];
    const layer = Math.min(state.layer, run.layers.length - 1);
    choose({ run: Number(select.value), place: Math.max(0, run.steps.length - 1), layer, head: -1 });
  });
  watch(["run"], () => (select.value = state.run));
  return [h("label", {}, words, select)];
}

/** Which rank the plots show, where a run has others beside the stable rank. */
function rankChoice(runs) {
  if (runs.every((run) => Object.keys(run.kinds).length < 2)) return [];
  const select = h("select", { id: "rank" });
  select.addEventListener("change", () => choose({ rank: select.value }));
  watch(["run"], () => select.replaceChildren(...Object.keys(here().kinds).map((kind) => h("option", { value: kind }, kind))));
  watch(["run", "rank"], () => (select.value = here().kind));
  return [h("label", {}, "Rank ", select)];
}

function layerChoice() {
  const select = h("select", { id: "layer" });
  select.addEventListener("change", () => choose({ layer: Number(select.value), head: -1 }));
  watch(["run"], () => {
    const all = here().layers.map((_, layer) => h("option", { value: layer }, here().layerName(layer)));
    select.replaceChildren(h("option", { value: -1 }, "all layers"), ...all);
  });
  watch(["run", "layer"], () => (select.value = state.layer));
  return ofHeads(h("label", {}, "Layer ", select));
}

function headChoice() {
  const select = h("select", { id: "head" });
  select.addEventListener("change", () => choose({ head: Number(select.value) }));
  watch(["run", "layer"], () => {
    const heads = state.layer < 0 ? [] : here().layers[state.layer].heads;
    select.replaceChildren(
      h("option", { value: -1 }, "mean over heads"),
      ...heads.map((_, slot) => h("option", { value: slot }, here().headName(state.layer, slot))),
    );
    select.disabled = state.layer < 0;
  });
  watch(["run", "layer", "head"], () => (select.value = state.head));
  return ofHeads(h("label", {}, "Head ", select));
}

/** A choice that a run without heads does not have. */
function ofHeads(label) {
  watch(["run"], () => (label.hidden = !here().layers.length));
  return label;
}

function stepChoice() {
  const slider = h("input", { type: "range", id: "step", min: 0, step: 1, "aria-label": "Measured step" });
  const shown = h("output", { for: "step" });
  slider.addEventListener("input", () => choose({ place: Number(slider.value), playing: false }));
  watch(["run"], () => (slider.max = Math.max(0, here().steps.length - 1)));
  watch(["run", "place"], () => {
    const words = here().empty ? "no ranks" : here().moment(here().steps[state.place]);
    slider.value = state.place;
    slider.setAttribute("aria-valuetext", words);
    shown.replaceChildren(words);
  });
  const last = () => Math.max(1, here().steps.length - 1);
  const play = playButton(
    SECONDS_TO_PLAY,
    () => state.place / last(),
    (share) => ({ place: Math.min(Math.round(share * last()), Math.max(0, here().steps.length - 1)) }),
  );
  return h("div", { class: "time steps" }, play, slider, shown);
}

function viewChoices() {
  return [
    checkbox("logTime", "time on a log scale"),
    checkbox("logLoss", "loss on a log scale"),
    checkbox("normalised", "spectra over their largest"),
    checkbox("logValues", "spectra on a log scale"),
    zoomButtons(timeZoom, "training", "step", () => here().times[state.place]),
  ];
}
