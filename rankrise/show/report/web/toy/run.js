// The toy runs of this page: of each seed, Algorithm 1's staircase, and flows and descents at each α; plots over time.

import { choose, state, Zoom } from "../controls.js";
import { countUpTo, known, payload } from "../data.js";
import { h, scaleText } from "../dom.js";
import { Plot } from "../plot.js";

class Run {
  constructor({ name, threshold, seeds }) {
    Object.assign(this, { name, threshold });
    this.seeds = new Map(Object.entries(seeds).map(([seed, record]) => [seed, new Seed(record)]));
    const labels = [...this.seeds.values()].flatMap((seed) => seed.short);
    this.labelled = Math.max(0, ...labels.map((label) => label.length));
  }

  /** The chosen seed, or undefined if this run does not have it. */
  get seed() {
    return this.seeds.get(state.seed);
  }
}

/** A problem: Algorithm 1's stages, of which `begun` counts those that have begun, and its training runs. */
class Seed {
  constructor(record) {
    Object.assign(this, record);
    this.flows = record.flows.map((flow) => new Path(flow)).sort((a, b) => b.log10_alpha - a.log10_alpha);
    this.descents = record.descents.map((descent) => new Path(descent)).sort((a, b) => b.step - a.step);
    this.times = record.stages.map((stage) => stage.time);
    this.losses = [record.initial_loss, ...record.stages.map((stage) => stage.loss)];
    this.points = [new Map(), ...record.stages.map((stage) => new Map(stage.point))];
    this.order = new Map(); // the stage that first learns a coordinate
    this.stages.forEach(({ coordinate }, at) => this.order.has(coordinate) || this.order.set(coordinate, at));
    this.rules = this.times.map((at, index) => ({ at, label: String(index + 1) }));
    this.groups = new Map(); // coordinates by kind, KQ before VO
    record.kinds.forEach((kind, coordinate) => this.groups.set(kind, [...(this.groups.get(kind) ?? []), coordinate]));
  }

  /** The flow at the chosen α, or undefined. */
  get flow() {
    return this.flows.find((flow) => flow.log10_alpha === state.alpha);
  }

  begun(time) {
    return countUpTo(this.times, time);
  }

  /** What Algorithm 1 says of a coordinate. */
  value(coordinate, begun) {
    return this.points[begun].get(coordinate) ?? 0;
  }

  /** The line of steps of anything that depends on how many stages have begun. */
  line(value) {
    const xs = [0, ...this.times, this.until];
    return { xs, ys: xs.map((_, place) => value(Math.min(place, this.times.length))), step: true };
  }

  /** A coordinate's place in the order of learning, 0 to 9, for its colour; null if it is never learned. */
  shade(coordinate) {
    return this.order.has(coordinate) ? Math.floor((10 * this.order.get(coordinate)) / this.order.size) : null;
  }

  /** The "loss" of Algorithm 1, or its "count" of active coordinates. */
  theory(what) {
    const value = (begun) => (what === "loss" ? this.losses[begun] : this.points[begun].size);
    return { name: "Algorithm 1", style: "theory", ...this.line(value) };
  }
}

/** A gradient flow or descent; `switches` are the times at which a coordinate becomes active, inactive, and so on. */
class Path {
  constructor(record) {
    Object.assign(this, record);
    this.loss = known(...record.loss);
    this.curves = record.curves.map((curve) => known(...curve));
    this.end = this.loss.xs.at(-1);
    this.scale = `α = ${scaleText(this.log10_alpha)}`;
  }

  isActive(coordinate, time) {
    return countUpTo(this.switches[coordinate], time) % 2 === 1;
  }

  /** When a coordinate becomes active, nearest to a time; NaN if it never does. */
  activeNear(coordinate, time) {
    const times = this.switches[coordinate].filter((_, index) => index % 2 === 0);
    return times.sort((a, b) => Math.abs(a - time) - Math.abs(b - time))[0] ?? NaN;
  }

  /** The number of active coordinates over time. */
  get count() {
    const events = this.switches.flatMap((times) => times.map((time, index) => [time, index % 2 ? -1 : 1]));
    events.sort((a, b) => a[0] - b[0]);
    let count = 0;
    const counts = events.map(([, change]) => (count += change));
    return { xs: [0, ...events.map(([time]) => time), this.end], ys: [0, ...counts, count], step: true };
  }
}

export const runs = payload().runs.map((record) => new Run(record));

/** Fill a section with `make(run)` for each run, beside one another. */
export function sideBySide(section, make) {
  const heading = (run) => (runs.length > 1 ? h("h3", { class: "run-name" }, run.name) : null);
  const parts = runs.map((run) => h("div", { class: "run" }, heading(run), make(run)));
  document.getElementById(section).append(h("div", { class: "runs" }, parts));
}

export const timeZoom = new Zoom();

/** A plot over rescaled time, which zooms with the others. */
export function plotOfTime(options) {
  return new Plot({
    xLabel: "rescaled time t / log(1/α)",
    zoom: timeZoom,
    cursor: [["time"], () => state.time],
    onPick: (time) => choose({ time }),
    ...options,
  });
}
