// The tracked runs of this page, the one that is chosen, and plots over its training.

import { choose, state, Zoom } from "../controls.js";
import { highest, known, lowest, mean, payload, spread } from "../data.js";
import { number } from "../dom.js";
import { Plot } from "../plot.js";

export const PRODUCTS = ["KQ", "VO"];
export const LOOKS = { KQ: "kq", VO: "vo dashed" };
const MOST_KEYED = 12;
const MOST_LISTED = 3; // with more lines, a sentence names the lowest and the highest

class Run {
  constructor(record) {
    Object.assign(this, record);
    this.empty = !record.steps.length;
    this.clock = record.epoch_steps ? "epoch" : "step";
    this.times = record.steps.map((step) => this.at(step));
    this.rules = record.stages.map(({ step, interval }, index) => {
      return { at: this.at(step), label: String(index + 1), interval: interval.map((end) => this.at(end)) };
    });
  }

  /** A step by the run's clock, epochs if it knows them. */
  at(step) {
    return step / (this.epoch_steps ?? 1);
  }

  /** "epoch 12.5 (step 1225)". */
  moment(step) {
    return this.epoch_steps ? `epoch ${number(this.at(step), 3)} (step ${step})` : `step ${step}`;
  }

  /** The moment that the slider shows. */
  get now() {
    return this.moment(this.steps[state.place]);
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

  headName(layer, slot) {
    return `head ${this.layers[layer].heads[slot] + 1}`;
  }

  /** Whose values a plot shows: "layer 3, head 2". */
  get whose() {
    const layer = this.layers[state.layer]?.title ?? "all layers";
    return `${layer}, ${state.head < 0 ? "mean over heads" : this.headName(state.layer, state.head)}`;
  }

  /** What is recorded `byLayer` of the chosen head, or of all heads of the chosen layer or layers. */
  chosen(byLayer) {
    if (state.layer < 0) return byLayer.flat();
    return state.head < 0 ? byLayer[state.layer] : [byLayer[state.layer][state.head]];
  }

  /** Mean and standard deviation over heads' curves, as a line with a band; heads that never change are left out. */
  over(curves, times = this.times) {
    const changing = curves.filter((curve) => curve.some((value) => value > 0));
    const columns = times.map((_, place) => (changing.length ? changing : curves).map((curve) => curve[place]));
    const means = columns.map(mean);
    const stds = columns.map((values, place) => Math.sqrt(mean(values.map((value) => (value - means[place]) ** 2))));
    const { xs, ys } = known(times, means);
    const deviations = known(times, stds).ys;
    const edge = (sign) => ys.map((value, place) => value + sign * deviations[place]);
    return { xs, ys, band: { low: edge(-1), high: edge(1) } };
  }

  /** Ranges of time in which most changes are rounding noise. */
  noisy(times = this.times) {
    const edge = (place) => (times[Math.max(0, place - 1)] + times[Math.min(place, times.length - 1)]) / 2;
    return times.flatMap((_, place) => (this.clear[place] ? [] : [[edge(place), edge(place + 1)]]));
  }

  /** Where lines end: "At the last step: 3.2 (change of KQ), 4.1 (change of VO)". */
  endsOf(lines) {
    const found = lines.filter(({ xs }) => xs.length).map(({ name, ys }) => ({ name, end: ys.at(-1) }));
    if (!found.length) return `The ${this.rankName} is not recorded there.`;
    const when = `At ${this.moment(this.steps.at(-1))}`;
    const ends = found.map(({ end }) => end);
    if (highest(ends) === 0) return `${when}, nothing has changed.`;
    const written = found.map(({ name, end }) => `${number(end, 3)} (${name})`);
    const [low, high] = [lowest(ends), highest(ends)].map((end) => written[ends.indexOf(end)]);
    return `${when}: ${found.length > MOST_LISTED ? `from ${low} to ${high}` : written.join(", ")}.`;
  }
}

const { runs: records, first } = payload();
export const runs = records.map((record) => new Run(record));

/** The run that the reader has chosen. */
export const here = () => runs[state.run];

/** Show a run from its last step on. */
export function showRun(run) {
  const layer = Math.min(state.layer, runs[run].layers.length - 1);
  choose({ run, place: Math.max(0, runs[run].steps.length - 1), layer, head: -1 });
}

state.layer = -1;
showRun(first);

/** The place of the entry nearest to a value, on a logarithmic axis. */
export function nearestTo(values, wanted) {
  const away = (value) => Math.abs(Math.log((value + 1e-9) / (wanted + 1e-9)));
  return values.reduce((best, value, place) => (away(value) < away(values[best]) ? place : best), 0);
}

export const greyNote = (greyed) => (greyed.length ? " Grey: most changes are rounding noise." : "");

/** The lines that have points, in the shades of their order, named above if they are few. */
export function keyed(lines) {
  const found = lines.filter(({ xs }) => xs.length);
  const unkeyed = found.length > MOST_KEYED;
  return found.map((line, index) => ({ ...line, shade: spread(index, found.length), unkeyed }));
}

export const timeZoom = new Zoom();

/** A plot over the training of the chosen run; `content(run)` gives what it shows. */
export function plotOfTime(options) {
  return new Plot({
    height: 290,
    zoom: timeZoom,
    cursor: [["place", "run"], () => here().times[state.place] ?? null],
    onPick: (moment) => choose({ place: nearestTo(here().times, moment) }),
    ...options,
    on: ["run", "logTime", ...options.on],
    content: () => {
      const run = here();
      const found = options.content(run);
      return found && { xLabel: run.clock, logX: state.logTime, rules: run.rules, ...found };
    },
  });
}
