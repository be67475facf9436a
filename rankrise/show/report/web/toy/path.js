// What a toy run's curves say: Algorithm 1's staircase, and a flow or a descent.

import { countUpTo, unpack } from "../curves.js";

/** Algorithm 1 of one seed: stages, plateau points and staircases. */
export class Staircase {
  constructor(seed, until) {
    this.stages = seed.stages;
    this.initialLoss = seed.initial_loss;
    this.message = seed.message;
    this.times = seed.stages.map((stage) => stage.time);
    this.until = until;
    this.points = seed.stages.map((stage) => new Map(stage.point));
    this.order = new Map();
    seed.stages.forEach((stage, index) => {
      if (!this.order.has(stage.coordinate)) this.order.set(stage.coordinate, index);
    });
  }

  /** How many stages have begun at a time. */
  begun(time) {
    return countUpTo(this.times, time);
  }

  /** The value of a coordinate on the plateau after `begun` stages. */
  value(coordinate, begun) {
    return begun ? (this.points[begun - 1].get(coordinate) ?? 0) : 0;
  }

  active(begun) {
    return begun ? [...this.points[begun - 1].keys()] : [];
  }

  /** The middles of the plateaus, the first before any stage. */
  get middles() {
    const edges = [0, ...this.times, this.until];
    return edges.slice(1).map((end, index) => (edges[index] + end) / 2);
  }

  lossAfter(begun) {
    return begun ? this.stages[begun - 1].loss : this.initialLoss;
  }

  /** A step curve of anything that depends on the number of stages begun. */
  curve(value) {
    const xs = [0];
    const ys = [value(0)];
    this.times.forEach((time, index) => {
      const next = value(index + 1);
      if (next !== ys[ys.length - 1]) {
        xs.push(time);
        ys.push(next);
      }
    });
    xs.push(this.until);
    ys.push(ys[ys.length - 1]);
    return { xs, ys, step: true };
  }

  /** Position of a coordinate in the order of learning, 0 to 9, for its colour; null if it is never learned. */
  shade(coordinate) {
    const index = this.order.get(coordinate);
    return index === undefined ? null : Math.floor((10 * index) / Math.max(1, this.order.size));
  }
}

/** A flow or a gradient descent: its curves, and which coordinates are active when. */
export class Path {
  constructor(record) {
    this.log10Alpha = record.log10_alpha;
    this.message = record.message;
    this.step = record.step;
    this.loss = unpack(record.times, record.loss);
    this.curves = record.curves.map((kept) => unpack(record.times, kept));
    this.switches = record.switches;
    this.activation = record.activation;
    this.end = record.times[record.times.length - 1];
  }

  /** Whether the size of a coordinate is above the threshold: it has been switched on more often than off. */
  isActive(coordinate, time) {
    return countUpTo(this.switches[coordinate], time) % 2 === 1;
  }

  /** When a coordinate becomes active nearest to a time; null if it never does. */
  activeNear(coordinate, time) {
    const times = this.switches[coordinate].filter((_, index) => index % 2 === 0);
    return times.reduce((best, one) => (best === null || Math.abs(one - time) < Math.abs(best - time) ? one : best), null);
  }

  active(time) {
    return this.switches.map((_, coordinate) => coordinate).filter((coordinate) => this.isActive(coordinate, time));
  }

  /** The number of active coordinates over time, as steps. */
  get count() {
    const events = this.switches.flatMap((times) => times.map((time, index) => [time, index % 2 ? -1 : 1]));
    events.sort((a, b) => a[0] - b[0]);
    const xs = [0];
    const ys = [0];
    for (const [time, change] of events) {
      xs.push(time);
      ys.push(ys[ys.length - 1] + change);
    }
    xs.push(this.end);
    ys.push(ys[ys.length - 1]);
    return { xs, ys, step: true };
  }
}
