// The tracked runs of this page, the one that is chosen, and plots over its training.

import { known, mean } from "../data.js";
import { capitalised, number } from "../dom.js";
import { Plot } from "../plot.js";
import { choose, state, Zoom } from "../state.js";

export const PRODUCTS = ["KQ", "VO"];
/** Stands for a product where matrices that belong to no head are meant. */
export const MATRICES = "matrices";

export class Run {
  constructor(record) {
    Object.assign(this, record);
    this.empty = !record.steps.length;
    this.times = record.steps.map((step) => this.at(step));
    this.headCount = record.layers.reduce((sum, { heads }) => sum + heads.length, 0);
    this.members = record.products.length ? "heads" : MATRICES;
    this.ruleNote = this.stages.length ? " Upright lines are stages, shaded where they lie with probability 0.9." : "";
    this.rules = record.stages.map(({ step, interval }, index) => ({
      at: this.at(step),
      label: String(index + 1),
      interval: interval.map((end) => this.at(end)),
    }));
  }

  /** The unit of time, epochs if it knows them. */
  get clock() {
    return this.epoch_steps ? "epoch" : "step";
  }

  at(step) {
    return step / (this.epoch_steps ?? 1);
  }

  /** "epoch 12.5 (step 1225)". */
  moment(step) {
    return this.epoch_steps ? `epoch ${number(this.at(step), 3)} (step ${step})` : `step ${step}`;
  }

  /** "the last step", or the step where ranks end if training went on without. */
  get end() {
    const last = this.steps.at(-1);
    return last === this.last ? "the last step" : `${this.moment(last)}, the last with ranks`;
  }

  /** " (step 20)" if training went on after the last finite value of a metric. */
  whenLast({ until }) {
    return until < this.last ? ` (${this.moment(until)})` : "";
  }

  /** The place of the measured step nearest to a moment, on a logarithmic clock. */
  nearest(moment) {
    return nearestTo(this.times, moment);
  }

  /** The rank that is shown: the chosen one if this run has it. */
  get kind() {
    return state.rank in this.kinds ? state.rank : "stable";
  }

  get rankName() {
    return `${this.kind} rank`;
  }

  /** By product, layer and head: curves of the rank that is shown. */
  get ranks() {
    return this.kinds[this.kind];
  }

  layerName(layer) {
    return this.layers[layer].title;
  }

  headName(layer, slot) {
    return `head ${this.layers[layer].heads[slot] + 1}`;
  }

  /** Whose values a plot shows: "layer 3, head 2"; `merged` if it has means over heads alone. */
  whose(merged) {
    if (this.headCount === 1) return capitalised(`${this.layerName(0)}, ${this.headName(0, 0)}`);
    const layer = state.layer < 0 ? "All layers" : this.layerName(state.layer);
    const one = !merged && state.layer >= 0 && state.head >= 0;
    return `${layer}, ${one ? this.headName(state.layer, state.head) : "mean over heads"}`;
  }

  /** What is recorded `byLayer` of the chosen head, or of all heads of the chosen layer or layers. */
  chosen(byLayer, merged) {
    if (state.layer < 0) return byLayer.flat();
    return merged || state.head < 0 ? byLayer[state.layer] : [byLayer[state.layer][state.head]];
  }

  /** Mean and standard deviation over heads' curves, as a line with a band; heads that never change are left out. */
  over(curves) {
    const changing = curves.filter((curve) => curve.some((value) => value > 0));
    const columns = this.times.map((_, place) => (changing.length ? changing : curves).map((curve) => curve[place]));
    const means = columns.map(mean);
    const stds = columns.map((values, place) => Math.sqrt(mean(values.map((value) => (value - means[place]) ** 2))));
    const { xs, ys } = known(this.times, means);
    const deviations = known(this.times, stds).ys;
    const low = ys.map((value, place) => value - deviations[place]);
    return { xs, ys, band: { low, high: ys.map((value, place) => value + deviations[place]) } };
  }

  /** Ranges of time in which most heads' change (or most matrices') is rounding noise; layer -1 means all layers. */
  noisy(products, layer = -1) {
    if (!this.noise) return [];
    const some = (each) => (layer < 0 ? each : [each[layer]]);
    const ofLayers = some(this.layers).reduce((sum, { heads }) => sum + heads.length, 0);
    const all = products.includes(MATRICES) ? this.matrices.length : products.length * ofLayers;
    const counts = products.flatMap((name) => some(this.noise[name].below));
    const edge = (place) => {
      const after = Math.min(place, this.times.length - 1);
      return (this.times[Math.max(0, place - 1)] + this.times[after]) / 2;
    };
    const isNoisy = (place) => 2 * counts.reduce((sum, count) => sum + count[place], 0) > all;
    return this.steps.flatMap((_, place) => (isNoisy(place) ? [[edge(place), edge(place + 1)]] : []));
  }

  greyNote(greyed, members = "heads") {
    return greyed.length ? ` Grey: rounding explains half of the change or more in most ${members}.` : "";
  }

  /** How much of a product's change rounding explains at a place of time, if that is known. */
  roundingNote(product, layer, place) {
    const at = (what) => {
      const each = this.noise?.[product]?.[what] ?? [];
      return mean((layer < 0 ? each : [each[layer]]).map((curve) => curve?.[place]));
    };
    const [share, rank] = [at("share"), at("rank")];
    if (Number.isNaN(share)) return [];
    const alone = Number.isNaN(rank) ? "" : `, and alone would have stable rank ${number(rank, 3)}`;
    return [`rounding explains ${number(100 * share, 2)} % of it${alone}`];
  }
}

/** The place of the entry nearest to a value, on a logarithmic axis. */
export function nearestTo(values, wanted) {
  const away = (value) => Math.abs(Math.log((value + 1e-9) / (wanted + 1e-9)));
  return values.reduce((best, value, place) => (away(value) < away(values[best]) ? place : best), 0);
}

const shown = [];

export function present(runs) {
  shown.push(...runs);
  runs.forEach((run) => (run.alone = runs.length === 1));
}

/** The run that the reader has chosen. */
export function here() {
  return shown[state.run];
}

export const timeZoom = new Zoom();

/** A plot over the training of the chosen run; `content(run)` gives what it shows. */
export function plotOfTime(options) {
  return new Plot({
    zoom: timeZoom,
    cursor: [["place", "run"], () => here().times[state.place] ?? null],
    onPick: (moment) => choose({ place: here().nearest(moment) }),
    ...options,
    on: ["run", "logTime", ...options.on],
    content: () => {
      const run = here();
      const found = options.content(run);
      return found && { xLabel: run.clock, logX: state.logTime, rules: run.rules, ...found };
    },
  });
}
