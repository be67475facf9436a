// The tracked runs this page was made from, as the payload carries them.

import { number } from "../dom.js";
import { state } from "../state.js";

export class Run {
  constructor(record) {
    Object.assign(this, record);
    this.empty = !record.steps.length;
  }

  /** "layer 3", counted from 1 as in the paper. */
  layerName(layer) {
    return `layer ${layer + 1}`;
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

  /** The measured step nearest to a moment of the axis, as its place. */
  nearest(moment) {
    const distance = (step) => Math.abs(Math.log((this.at(step) + 1e-9) / (moment + 1e-9)));
    return this.steps.reduce((best, step, place) => (distance(step) < distance(this.steps[best]) ? place : best), 0);
  }

  get times() {
    return this.steps.map((step) => this.at(step));
  }

  /** Mean and standard deviation over some heads' curves, as a line with a band. */
  over(curves) {
    const known = curves.filter((curve) => curve.some((value) => value > 0));
    const columns = this.steps.map((_, place) => (known.length ? known : curves).map((curve) => curve[place]));
    const means = columns.map(mean);
    const stds = columns.map((values, place) => Math.sqrt(mean(values.map((value) => (value - means[place]) ** 2))));
    const low = means.map((value, place) => value - stds[place]);
    const high = means.map((value, place) => value + stds[place]);
    return { xs: this.times, ys: means, band: { low, high } };
  }

  /** The mean over a layer's heads at a place of time. */
  layerMean(product, layer, place) {
    return mean(this.ranks[product][layer].map((curve) => curve[place]));
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

export function mean(values) {
  return values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length);
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
