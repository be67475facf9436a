// Singular values: whole spectra at steps of training, and the leading values through training.

import { state, watch } from "../controls.js";
import { highest, known, lowest, mean, spread } from "../data.js";
import { absent, changeOf, h, number, put } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { greyNote, here, nearestTo, plotOfTime, PRODUCTS } from "./run.js";

const FLOOR = 1e-6; // leading values are shown from this fraction of the largest on

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
