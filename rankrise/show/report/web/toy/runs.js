// The runs this page was made from, as the payload carries them.

import { symbol } from "../layout.js";
import { state } from "../state.js";
import { Path, Staircase } from "./path.js";

export class Run {
  constructor(record) {
    this.name = record.name;
    this.threshold = record.threshold;
    this.seeds = new Map(Object.entries(record.seeds).map(([seed, content]) => [seed, new Seed(content)]));
  }

  /** The length of its longest short label, for which plots leave room at the right. */
  get labelled() {
    return Math.max(0, ...[...this.seeds.values()].flatMap((seed) => seed.short.map((label) => label.length)));
  }

  /** The chosen seed, or null where this run has none such. */
  get seed() {
    return this.seeds.get(state.seed) ?? null;
  }
}

class Seed {
  constructor(record) {
    this.labels = record.labels;
    this.short = record.short;
    this.kinds = record.kinds;
    this.full = record.full;
    this.perturbations = record.perturbations;
    this.flows = new Map(record.flows.map((flow) => [flow.log10_alpha, new Path(flow)]));
    this.descents = record.descents.map((descent) => new Path(descent));
    const ends = [...this.flows.values()].map((flow) => flow.end);
    const last = record.stages.length ? record.stages[record.stages.length - 1].time : 1;
    this.until = ends.length ? Math.max(...ends) : 1.02 * last;
    this.staircase = new Staircase(record, this.until);
  }

  get flow() {
    return this.flows.get(state.alpha) ?? null;
  }

  /** Gradient descents at the chosen α, the coarsest step first. */
  get descentsHere() {
    return this.descents.filter((descent) => descent.log10Alpha === state.alpha).sort((a, b) => b.step - a.step);
  }

  /** The kinds of coordinates there are, KQ before VO, each with its coordinates. */
  get groups() {
    const groups = new Map();
    this.kinds.forEach((kind, coordinate) => groups.set(kind, [...(groups.get(kind) ?? []), coordinate]));
    return groups;
  }

  /** "VO 4, stage 1", for tooltips. */
  describe(coordinate) {
    const stage = this.staircase.order.get(coordinate);
    return stage === undefined ? `${this.labels[coordinate]}, not learned` : `${this.labels[coordinate]}, stage ${stage + 1}`;
  }

  shade(coordinate) {
    return this.staircase.shade(coordinate);
  }

  get rules() {
    return this.staircase.times.map((at, index) => ({ at, label: String(index + 1) }));
  }
}

/** w_K ⊙ w_Q, the diagonal product of a kind, as text is set in a book. */
export function diagonalProduct([left, right]) {
  return [...symbol("w", left), " ⊙ ", ...symbol("w", right)];
}
