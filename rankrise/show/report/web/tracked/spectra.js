// Singular values: whole spectra at steps of training, the leading values through training, and what a cut leaves.

import { highest, known, lowest, mean, spread } from "../data.js";
import { absent, changeOf, h, number, plural, put } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { keyed } from "./ranks.js";
import { here, nearestTo, plotOfTime, PRODUCTS } from "./run.js";

const FLOOR = 1e-6; // leading values are shown from this fraction of the largest on

export function spectra() {
  const none = absent("");
  watch(["run"], () => {
    none.replaceChildren(`This run has no full spectra${here().finished ? "" : " yet"}.`);
    none.hidden = here().spectra.steps.length > 0 || here().matrix_spectra.steps.length > 0;
  });
  put("spectra-here", none, pair(...PRODUCTS.map(productSpectra), matrixSpectra()));
}

/** A plot of spectra at the step nearest to the chosen one; `content(run)` gives its lines and summary. */
function plotOfSpectra(on, content) {
  return new Plot({
    xLabel: "index of the singular value",
    xLabelShort: "index",
    key: true,
    height: 290,
    tip: (index, line, y) => [line.name, `value ${Math.round(index)}: ${number(y, 3)}`],
    on: ["run", "place", "normalised", "logValues", ...on],
    content: () => {
      const found = content(here());
      return found && { ...found, logY: state.logValues, floor: state.logValues ? undefined : 0 };
    },
  });
}

function productSpectra(product) {
  return plotOfSpectra(["layer", "head"], (run) => {
    const { steps, indices, initial, change, initial_above, change_above, merged } = run.spectra;
    if (!steps.length || !run.products.includes(product)) return null;
    const chosen = nearestTo(steps, run.steps[state.place] ?? 1);
    const atFirst = run.since === null ? "initial product" : "product at first";
    const line = (byLayer, more) => {
      const curves = run.chosen(byLayer, merged).map(scaled);
      const shared = indices.slice(0, lowest(curves.map((curve) => curve.length)));
      return { ...known(shared, shared.map((_, index) => mean(curves.map((curve) => curve[index])))), ...more };
    };
    const lines = steps.map((step, index) => {
      const green = steps.length < 2 ? 5 : Math.round((5 * index) / (steps.length - 1));
      const style = `green-${green}${index === chosen ? " now" : " faint"}`;
      return line(change[product][index], { name: `change at ${run.moment(step)}`, unkeyed: index !== chosen, style });
    });
    lines.push(line(initial[product], { name: atFirst, style: "initial" }));
    const above = (byLayer) => number(mean(run.chosen(byLayer, merged)), 3);
    const count = above(change_above[product][chosen]);
    const values = `${count} ${count === "1" ? "value" : "values"} of the change at ${run.moment(steps[chosen])}`;
    const counts = `Above a tenth of a head’s largest: ${values}, ${above(initial_above[product])} of the ${atFirst}.`;
    const summary = `${run.whose(merged)}${overLargest()}. ${counts}`;
    return { name: `Spectra of ${product}`, title: ["Singular values of ", ...changeOf(product)], lines, summary };
  });
}

function overLargest() {
  return state.normalised ? "; each spectrum over its largest value" : "";
}

function scaled(curve) {
  return state.normalised ? curve.map((value) => (curve[0] > 0 ? value / curve[0] : 0)) : curve;
}

/** A line for each matrix that belongs to no head. */
function matrixSpectra() {
  return plotOfSpectra([], (run) => {
    const { steps, indices, change } = run.matrix_spectra;
    if (!steps.length) return null;
    const chosen = nearestTo(steps, run.steps[state.place] ?? 1);
    const lineOf = ({ name }, place) => ({ name, ...known(indices[place], scaled(change[place][chosen])) });
    const lines = keyed(run.matrices.map(lineOf));
    const missing = run.matrices.length - lines.length;
    const but = missing ? `; ${plural(missing, "large matrix has", "large matrices have")} none there` : "";
    const shown = `${plural(lines.length, "matrix", "matrices")} at ${run.moment(steps[chosen])}`;
    const title = "Singular values of the change of other matrices";
    return { name: "Spectra of other matrices", title, lines, summary: `${shown}${but}${overLargest()}.` };
  });
}

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
    height: 290,
    tip: (moment, line, y) => [line.name, number(y, 3), `${here().clock} ${number(moment, 3)}`],
    on: ["layer", "head"],
    content: (run) => {
      const { steps, values, merged } = run.leading;
      if (steps.length < 2 || !run.products.includes(product)) return null;
      const times = steps.map((step) => run.at(step));
      const heads = run.chosen(values[product], merged);
      const count = highest([0, ...heads.map((head) => head.length)]);
      const curves = Array.from({ length: count }, (_, index) => {
        const ofHeads = heads.flatMap((head) => (head[index] ? [head[index]] : []));
        const look = { name: `singular value ${index + 1}`, label: String(index + 1), shade: spread(index, count) };
        return { ...look, ...known(times, times.map((_, place) => mean(ofHeads.map((curve) => curve[place])))) };
      });
      const shown = curves.filter(({ xs }) => xs.length);
      const floor = FLOOR * highest([0, ...shown.flatMap(({ ys }) => ys)]);
      const lines = shown.map((line) => ({ ...line, direct: line.ys.at(-1) > floor }));
      const greyed = run.noisy([product], state.layer);
      const isCut = lines.some(({ ys }) => ys.some((value) => value < floor));
      const cut = isCut ? ", from a millionth of the largest on" : "";
      const what = `the ${plural(lines.length, "largest value", "largest values")}${cut}.`;
      const summary = `${run.whose(merged)}: ${what}${run.ruleNote}${run.greyNote(greyed)}`;
      return { lines, greyed, floor: floor || undefined, summary };
    },
  });
}

/** What remains when the change is cut to few directions, if any run was truncated. */
export function remains(runs) {
  if (!runs.some((run) => run.truncation)) return;
  const note =
    "How much of the fall of the loss remains when the change of some weights is cut to its leading directions: " +
    "of the products of all heads, and of groups of matrices. The rest of the network stays as trained. " +
    "Dashed: weighted by what a direction does to the loss.";
  const plots = pair(gainPlot("head products", true), gainPlot("matrices", false));
  const title = h("h3", {}, "What remains at each rank");
  put("spectra-here", h("div", { id: "remains" }, title, h("p", {}, note), plots));
}

function gainPlot(what, ofHeads) {
  const nameOf = ({ method, group }) => (method === "plain" ? group : `${group}, ${method}`);
  return new Plot({
    name: `Share of the gain by rank, ${what}`,
    title: `Share of the gain that remains, ${what}`,
    xLabel: "rank",
    still: true,
    key: true,
    floor: 0,
    height: 290,
    tip: (rank, line, y) => [line.name, `${number(100 * y, 3)} % of the gain at rank ${Math.round(rank)}`],
    on: ["run"],
    content: () => {
      const curves = (here().truncation ?? []).filter(({ heads, ranks }) => heads === ofHeads && ranks.length);
      if (!curves.length) return { lines: [], summary: "This run was not truncated." };
      const groups = [...new Set(curves.map((curve) => curve.group))];
      const lines = curves.map((curve) => ({
        name: nameOf(curve),
        label: nameOf(curve),
        shade: spread(groups.indexOf(curve.group), groups.length),
        style: curve.method === "plain" ? "" : "dashed",
        direct: true,
        xs: curve.ranks,
        ys: curve.gains,
      }));
      const [{ gain, on }] = curves;
      const found = curves.filter((curve) => curve.functional !== null);
      const ranks = found.map((curve) => `${curve.functional} of ${curve.full} (${nameOf(curve)})`);
      const kept = `keeps ${number(100 * gain, 3)} % of the gain${on ? `, of the loss on ${on}` : ""}`;
      return { lines, summary: `Functional rank, the least that ${kept}: ${ranks.join(", ") || "none"}.` };
    },
  });
}
