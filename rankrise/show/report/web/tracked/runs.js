// The tracked runs this page was made from, as the payload carries them.

import { number } from "../dom.js";
import { state } from "../state.js";

/** Matrices that belong to no head, where products are named. */
export const MATRICES = "matrices";

export class Run {
  constructor(record) {
    Object.assign(this, record);
    this.empty = !record.steps.length;
  }

  /** "layer 3", counted from 1 as in the paper, with its name where that says more. */
  layerName(layer) {
    return this.layers[layer].title;
  }

  /** The rank that is shown: the one chosen, where this run has it. */
  get kind() {
    return state.rank in this.kinds ? state.rank : "stable";
  }

  get rankName() {
    return `${this.kind} rank`;
  }

  /** "Stable rank", as titles begin. */
  get rankTitle() {
    return this.rankName[0].toUpperCase() + this.rankName.slice(1);
  }

  /** By product, layer and head: curves of the rank that is shown. */
  get ranks() {
    return this.kinds[this.kind];
  }

  /** Curves of the rank that is shown, of each matrix that has it. */
  get matrixCurves() {
    return this.matrices.flatMap(({ kinds }) => (this.kind in kinds ? [kinds[this.kind]] : []));
  }

  /** How many heads were tracked, in all layers. */
  get headCount() {
    return this.layers.reduce((sum, { heads }) => sum + heads.length, 0);
  }

  /** "Layer 1, head 1", where no other was tracked. */
  get onlyHead() {
    const name = `${this.layerName(0)}, ${this.headName(0, 0)}`;
    return name[0].toUpperCase() + name.slice(1);
  }

  headName(layer, slot) {
    return `head ${this.layers[layer].heads[slot] + 1}`;
  }

  /** What an axis of time is in, and a step on it. */
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

  /** Where ranks end: "the last step", or which step, where training went on without ranks. */
  get end() {
    const last = this.steps.at(-1);
    return last === this.last ? "the last step" : `${this.moment(last)}, the last with ranks`;
  }

  /** " (step 20)", where training went on after the last finite value of a metric. */
  whenLast({ until }) {
    return until < this.last ? ` (${this.moment(until)})` : "";
  }

  /** The measured step nearest to a moment of the axis, as its place. */
  nearest(moment) {
    const distance = (step) => Math.abs(Math.log((this.at(step) + 1e-9) / (moment + 1e-9)));
    return this.steps.reduce((best, step, place) => (distance(step) < distance(this.steps[best]) ? place : best), 0);
  }

  get times() {
    return (this.moments ??= this.steps.map((step) => this.at(step)));
  }

  /** Mean and standard deviation over some heads' curves, as a line with a band. */
  over(curves) {
    const known = curves.filter((curve) => curve.some((value) => value > 0));
    const values = (place) => (known.length ? known : curves).map((curve) => curve[place]).filter((value) => value !== null);
    const places = this.steps.map((_, place) => place).filter((place) => values(place).length);
    const columns = places.map(values);
    const means = columns.map(mean);
    const stds = columns.map((values, place) => Math.sqrt(mean(values.map((value) => (value - means[place]) ** 2))));
    const low = means.map((value, place) => value - stds[place]);
    const high = means.map((value, place) => value + stds[place]);
    return { xs: places.map((place) => this.times[place]), ys: means, band: { low, high } };
  }

  /** A curve as a line through what is known of it. */
  line(curve) {
    const places = this.steps.map((_, place) => place).filter((place) => (curve[place] ?? null) !== null);
    return { xs: places.map((place) => this.times[place]), ys: places.map((place) => curve[place]) };
  }

  /** The mean over a layer's heads at a place of time. */
  layerMean(product, layer, place) {
    return mean(this.ranks[product][layer].map((curve) => curve[place]));
  }

  /** Ranges of time in which the change of most heads is rounding noise, of these products and one layer or, if -1, all; or of most matrices. */
  noisy(products, layer = -1) {
    if (!this.noise) return [];
    const some = (each) => (layer < 0 ? each : [each[layer]]);
    const ofLayers = products.length * some(this.layers).reduce((sum, { heads }) => sum + heads.length, 0);
    const heads = products.includes(MATRICES) ? this.matrices.length : ofLayers;
    const below = (place) => products.flatMap((name) => some(this.noise[name]?.below ?? [])).reduce((sum, counts) => sum + counts[place], 0);
    const edge = (place) => (this.times[Math.max(0, place - 1)] + this.times[Math.min(place, this.times.length - 1)]) / 2;
    const places = this.steps.map((_, place) => place).filter((place) => 2 * below(place) > heads);
    return places.map((place) => [edge(place), edge(place + 1)]);
  }

  /** "rounding explains 12 % of it, and alone would have stable rank 8", of a product’s change in one layer or, if -1, in all, where that is known. */
  roundingNote(product, layer, place) {
    const [share, rank] = ["share", "rank"].map((what) => {
      const each = this.noise?.[product]?.[what] ?? [];
      const known = (layer < 0 ? each : [each[layer]]).map((curve) => curve?.[place] ?? null).filter((one) => one !== null);
      return known.length ? mean(known) : null;
    });
    const alone = rank === null ? "" : `, and alone would have stable rank ${number(rank, 3)}`;
    return share === null ? null : `rounding explains ${number(100 * share, 2)} % of it${alone}`;
  }

  /** What a plot says of grey ranges, if there are any. */
  greyNote(greyed, members = "heads") {
    return greyed.length ? ` Grey: rounding explains half of the change or more in most ${members}.` : "";
  }

  /** What a plot says of them, if there are any. */
  get ruleNote() {
    return this.stages.length ? " Upright lines are stages, shaded where they lie with probability 0.9." : "";
  }

  get rules() {
    return this.stages.map((stage, index) => ({
      at: this.at(stage.step),
      label: String(index + 1),
      interval: stage.interval.map((step) => this.at(step)),
    }));
  }
}

/** Of the values that are known. */
export function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.reduce((sum, value) => sum + value, 0) / Math.max(1, known.length);
}

const shown = [];

/** The runs this page shows, in their order. */
export function present(runs) {
  shown.push(...runs);
}

/** The run that the reader has chosen. */
export function here() {
  return shown[state.run];
}
