// The toy runs of this page: of each seed, Algorithm 1's staircase, and flows and descents at each α.

import { countUpTo, known } from "../data.js";
import { state } from "../state.js";

export class Run {
  constructor(record) {
    this.name = record.name;
    this.threshold = record.threshold;
    this.seeds = new Map(Object.entries(record.seeds).map(([name, seed]) => [name, new Seed(seed)]));
    const labels = [...this.seeds.values()].flatMap((seed) => seed.short);
    this.labelled = Math.max(0, ...labels.map((label) => label.length));
  }

  /** The chosen seed, or null if this run does not have it. */
  get seed() {
    return this.seeds.get(state.seed) ?? null;
  }
}

class Seed {
  constructor(record) {
    Object.assign(this, record);
    this.flows = new Map(record.flows.map((flow) => [flow.log10_alpha, new Path(flow)]));
    this.descents = record.descents.map((descent) => new Path(descent));
    this.staircase = new Staircase(record);
    this.rules = record.stages.map(({ time }, index) => ({ at: time, label: String(index + 1) }));
    this.groups = new Map(); // coordinates by kind, KQ before VO
    record.kinds.forEach((kind, coordinate) => this.groups.set(kind, [...(this.groups.get(kind) ?? []), coordinate]));
  }

  get flow() {
    return this.flows.get(state.alpha) ?? null;
  }

  /** Gradient descents at the chosen α, the coarsest step first. */
  get descentsHere() {
    return this.descents.filter((one) => one.log10_alpha === state.alpha).sort((a, b) => b.step - a.step);
  }

  /** "VO 4, stage 1", for tips. */
  describe(coordinate) {
    const stage = this.staircase.order.get(coordinate);
    return `${this.labels[coordinate]}, ${stage === undefined ? "not learned" : `stage ${stage + 1}`}`;
  }
}

/** Algorithm 1: `begun` counts the stages that have begun. */
class Staircase {
  constructor({ stages, initial_loss, until }) {
    this.until = until;
    this.times = stages.map((stage) => stage.time);
    this.losses = [initial_loss, ...stages.map((stage) => stage.loss)];
    this.points = [new Map(), ...stages.map((stage) => new Map(stage.point))];
    this.order = new Map(); // the stage that first learns a coordinate
    stages.forEach(({ coordinate }, index) => this.order.has(coordinate) || this.order.set(coordinate, index));
  }

  begun(time) {
    return countUpTo(this.times, time);
  }

  value(coordinate, begun) {
    return this.points[begun].get(coordinate) ?? 0;
  }

  /** The middles of the plateaus, the first before any stage. */
  get middles() {
    const edges = [0, ...this.times, this.until];
    return edges.slice(1).map((end, index) => (edges[index] + end) / 2);
  }

  /** The line of steps of anything that depends on how many stages have begun. */
  line(value) {
    const steps = [0, ...this.times].map((time, begun) => [time, value(begun)]);
    const kept = steps.filter(([, y], begun) => begun === 0 || y !== steps[begun - 1][1]);
    kept.push([this.until, kept.at(-1)[1]]);
    return { xs: kept.map(([x]) => x), ys: kept.map(([, y]) => y), step: true };
  }

  /** A coordinate's place in the order of learning, 0 to 9, for its colour; null if it is never learned. */
  shade(coordinate) {
    const index = this.order.get(coordinate);
    return index === undefined ? null : Math.floor((10 * index) / Math.max(1, this.order.size));
  }
}

/** A gradient flow or descent; `switches` are the times at which a coordinate becomes active, inactive, and so on. */
class Path {
  constructor(record) {
    Object.assign(this, record);
    this.loss = known(...record.loss);
    this.curves = record.curves.map((curve) => known(...curve));
    this.end = this.loss.xs.at(-1);
  }

  isActive(coordinate, time) {
    return countUpTo(this.switches[coordinate], time) % 2 === 1;
  }

  active(time) {
    return this.switches.map((_, coordinate) => coordinate).filter((coordinate) => this.isActive(coordinate, time));
  }

  /** When a coordinate becomes active, nearest to a time; null if it never does. */
  activeNear(coordinate, time) {
    const times = this.switches[coordinate].filter((_, index) => index % 2 === 0);
    return times.sort((a, b) => Math.abs(a - time) - Math.abs(b - time))[0] ?? null;
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
