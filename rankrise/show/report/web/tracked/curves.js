// Singular values, whole and through training; loss and metrics; and the stages in numbers.

import { state, watch } from "../controls.js";
import { highest, known, lowest, mean, spread } from "../data.js";
import { absent, changeOf, h, number, plural, put, scrolling, table } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { greyNote, here, nearestTo, plotOfTime, PRODUCTS, runs } from "./run.js";

const FLOOR = 1e-6; // leading values are shown from this fraction of the largest on
const TITLES = {
  loss: "Training loss",
  validation_loss: "Validation loss",
  accuracy: "Validation accuracy",
  perplexity: "Validation perplexity",
  learning_rate: "Learning rate",
};
const CURVES_NAMED = 4;

export function spectra() {
  const none = absent("This run has no full spectra.");
  watch(["run"], () => (none.hidden = here().spectra.steps.length > 0));
  put("spectra-here", none, pair(...PRODUCTS.map(plotOfSpectra)));
}

/** The initial spectrum, and that of the change at some steps; the one nearest to the chosen step is thick. */
function plotOfSpectra(product) {
  return new Plot({
    name: `Spectra of ${product}`,
    title: ["Singular values of ", ...changeOf(product)],
    xLabel: "index of the singular value",
    key: true,
    height: 290,
    tip: (index, line, y) => [line.name, `value ${Math.round(index)}: ${number(y, 3)}`],
    on: ["run", "place", "normalised", "logValues", "layer", "head"],
    content: () => {
      const run = here();
      const { steps, indices, initial, change } = run.spectra;
      if (!steps.length || !run.products.includes(product)) return null;
      const chosen = nearestTo(steps, run.steps[state.place] ?? 1);
      const lineOf = (byLayer) => {
        const curves = run.chosen(byLayer).map(scaled);
        const shared = indices.slice(0, lowest(curves.map((curve) => curve.length)));
        return known(shared, shared.map((_, index) => mean(curves.map((curve) => curve[index]))));
      };
      const lines = steps.map((step, index) => {
        const green = steps.length < 2 ? 5 : Math.round((5 * index) / (steps.length - 1));
        const look = { style: `green-${green}${index === chosen ? " now" : ""}`, unkeyed: index !== chosen };
        return { name: `change at ${run.moment(step)}`, ...look, ...lineOf(change[product][index]) };
      });
      const { name, xs, ys } = lines[chosen];
      const last = xs[ys.findLastIndex((value) => value > ys[0] / 10)] ?? 0;
      const atFirst = run.since === null ? "initial product" : "product at first";
      lines.push({ name: atFirst, style: "initial", ...lineOf(initial[product]) });
      const over = state.normalised ? " Each spectrum is over its largest value." : "";
      const summary = `Of ${run.whose}: of the ${name}, ${last} values are above a tenth of the largest.${over}`;
      return { lines, summary, logY: state.logValues, floor: state.logValues ? undefined : 0 };
    },
  });
}

const scaled = (curve) => (state.normalised ? curve.map((value) => (curve[0] > 0 ? value / curve[0] : 0)) : curve);

/** Where a stage adds a direction, another singular value rises. */
export function leading() {
  const note =
    "The leading singular values of the change, on a logarithmic axis. Where a head learns one direction after " +
    "another, as in theory, one value after another rises to the size of the largest.";
  const title = h("h3", {}, "Singular values through training");
  const block = h("div", { id: "leading" }, title, h("p", {}, note), pair(...PRODUCTS.map(leadingValues)));
  watch(["run"], () => (block.hidden = here().leading.steps.length < 2 || !here().products.length));
  put("spectra-here", block);
}

function leadingValues(product) {
  return plotOfTime({
    name: `Singular values of the change of ${product} through training`,
    title: ["Singular values of ", ...changeOf(product), " through training"],
    logY: true,
    tip: (moment, line, y) => [line.name, number(y, 3), `${here().clock} ${number(moment, 3)}`],
    on: ["layer", "head"],
    content: (run) => {
      const { steps, values } = run.leading;
      if (steps.length < 2 || !run.products.includes(product)) return null;
      const times = steps.map((step) => run.at(step));
      const heads = run.chosen(values[product]);
      const count = highest([0, ...heads.map((head) => head.length)]);
      const lines = Array.from({ length: count }, (_, index) => {
        const curves = heads.flatMap((head) => (head[index] ? [head[index]] : []));
        const look = { name: `singular value ${index + 1}`, label: String(index + 1), shade: spread(index, count) };
        return { ...look, ...known(times, times.map((_, place) => mean(curves.map((curve) => curve[place])))) };
      });
      const floor = FLOOR * highest([0, ...lines.flatMap(({ ys }) => ys)]);
      lines.forEach((line) => (line.direct = line.ys.at(-1) > floor));
      const greyed = run.noisy();
      const summary = `Of ${run.whose}: the ${count} largest.${greyNote(greyed)}`;
      return { lines, greyed, floor: floor || undefined, summary };
    },
  });
}

export function training() {
  const metrics = new Set([...Object.keys(TITLES), ...runs.flatMap((run) => Object.keys(run.training))]);
  const none = absent("This run has no record of loss or metrics.");
  watch(["run"], () => (none.hidden = Object.keys(here().training).length > 0));
  put("training-here", none, pair(...[...metrics].map(metricPlot)));
}

function metricPlot(metric) {
  // "perplexity/wikitext-103" is a perplexity on a further text; "word_perplexity/…" is by words, not tokens.
  const [kind, text] = metric.split(/\/(.*)/s);
  const title = TITLES[metric] ?? `Perplexity${kind === "word_perplexity" ? " by words" : ""}, ${text}`;
  return plotOfTime({
    name: title,
    title,
    height: 230,
    floor: metric === "learning_rate" ? 0 : undefined,
    tip: (moment, line, y) => [`${line.name} ${number(y)}`, `${here().clock} ${number(moment, 3)}`],
    on: ["logLoss"],
    content: (run) => {
      const record = run.training[metric];
      if (!record) return null;
      const { first, last, steps, values, window } = record;
      const line = { name: title[0].toLowerCase() + title.slice(1), style: "main" };
      const windowed = window > 1 ? ` Each point is the mean of ${window} recorded.` : "";
      const logY = /loss|perplexity/.test(metric) && state.logLoss;
      const only = `${number(last)} at ${run.moment(steps[0])}`;
      const course = steps.length > 1 ? `From ${number(first)} to ${number(last)}` : only;
      const lines = [{ ...line, ...known(steps.map((step) => run.at(step)), values) }];
      return { lines, logY, summary: `${course}.${windowed}` };
    },
  });
}

/** Every stage found: when, how sure, and in which curves. */
export function stages() {
  const holder = h("div");
  watch(["run"], () => {
    const run = here();
    if (!run.stages.length) return holder.replaceChildren(absent(run.about_stages));
    const rows = run.stages.map(({ step, interval, probability, curves }, index) => {
      const more = curves.length > CURVES_NAMED ? ` and ${curves.length - CURVES_NAMED} more` : "";
      const when = run.epoch_steps ? [step, number(run.at(step), 3)] : [step];
      const sure = probability > 0.99 ? "> 99 %" : number(probability, 2);
      return [index + 1, ...when, interval.join(" to "), sure, curves.slice(0, CURVES_NAMED).join(", ") + more];
    });
    const head = ["stage", "step", ...(run.epoch_steps ? ["epoch"] : []), "within", "probability", "seen in"];
    const made = table(`${plural(rows.length, "stage")} of ${run.name}`, head, rows);
    holder.replaceChildren(scrolling(`Stages of ${run.name}`, made, "found"));
  });
  put("found-here", holder);
}
