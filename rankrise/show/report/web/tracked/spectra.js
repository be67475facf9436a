// Singular values: whole spectra at steps of training, the leading values through training, and what a cut leaves.

import { state, watch } from "../controls.js";
import { highest, known, lowest, mean, spread } from "../data.js";
import { absent, changeOf, h, number, percent, plural, put } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { greyNote, here, keyed, nearestTo, plotOfTime, PRODUCTS, runs } from "./run.js";

const FLOOR = 1e-6; // leading values are shown from this fraction of the largest on

export function spectra() {
  const none = absent("This run has no full spectra.");
  watch(["run"], () => (none.hidden = here().spectra.steps.length > 0 || here().matrix_spectra.steps.length > 0));
  const ofProducts = PRODUCTS.map((product) => plotOfSpectra((run) => productSpectra(run, product)));
  put("spectra-here", none, pair(...ofProducts, plotOfSpectra(matrixSpectra)));
}

/** A plot of spectra at the step nearest to the chosen one; `content(run)` gives its lines and summary. */
function plotOfSpectra(content) {
  return new Plot({
    xLabel: "index of the singular value",
    key: true,
    height: 290,
    tip: (index, line, y) => [line.name, `value ${Math.round(index)}: ${number(y, 3)}`],
    on: ["run", "place", "normalised", "logValues", "layer", "head"],
    content: () => {
      const found = content(here());
      const over = state.normalised ? " Each spectrum is over its largest value." : "";
      const floor = state.logValues ? undefined : 0;
      return found && { ...found, summary: found.summary + over, logY: state.logValues, floor };
    },
  });
}

const scaled = (curve) => (state.normalised ? curve.map((value) => (curve[0] > 0 ? value / curve[0] : 0)) : curve);

function productSpectra(run, product) {
  const { steps, indices, initial, change, initial_above, change_above, merged } = run.spectra;
  if (!steps.length || !run.products.includes(product)) return null;
  const chosen = nearestTo(steps, run.steps[state.place] ?? 1);
  const atFirst = run.since === null ? "initial product" : "product at first";
  const lineOf = (byLayer) => {
    const curves = run.chosen(byLayer, merged).map(scaled);
    const shared = indices.slice(0, lowest(curves.map((curve) => curve.length)));
    return known(shared, shared.map((_, index) => mean(curves.map((curve) => curve[index]))));
  };
  const lines = steps.map((step, index) => {
    const green = steps.length < 2 ? 5 : Math.round((5 * index) / (steps.length - 1));
    const look = { style: `green-${green}${index === chosen ? " now" : ""}`, unkeyed: index !== chosen };
    return { name: `change at ${run.moment(step)}`, ...look, ...lineOf(change[product][index]) };
  });
  lines.push({ name: atFirst, style: "initial", ...lineOf(initial[product]) });
  const above = (byLayer) => number(mean(run.chosen(byLayer, merged)), 3);
  const values = `${above(change_above[product][chosen])} of the change at ${run.moment(steps[chosen])}`;
  const counts = `${values}, ${above(initial_above[product])} of the ${atFirst}`;
  const summary = `${run.whose(merged)}; values above a tenth of a head’s largest: ${counts}.`;
  return { name: `Spectra of ${product}`, title: ["Singular values of ", ...changeOf(product)], lines, summary };
}

/** A line for each matrix that belongs to no head. */
function matrixSpectra(run) {
  const { steps, indices, change } = run.matrix_spectra;
  if (!steps.length) return null;
  const chosen = nearestTo(steps, run.steps[state.place] ?? 1);
  const lineOf = ({ name }, place) => ({ name, ...known(indices[place], scaled(change[place][chosen])) });
  const lines = keyed(run.matrices.map(lineOf));
  const summary = `${plural(lines.length, "matrix", "matrices")} at ${run.moment(steps[chosen])}.`;
  const title = "Singular values of the change of other matrices";
  return { name: "Spectra of other matrices", title, lines, summary };
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
    tip: (moment, line, y) => [line.name, number(y, 3), `${here().clock} ${number(moment, 3)}`],
    on: ["layer", "head"],
    content: (run) => {
      const { steps, values, merged } = run.leading;
      if (steps.length < 2 || !run.products.includes(product)) return null;
      const times = steps.map((step) => run.at(step));
      const heads = run.chosen(values[product], merged);
      const count = highest([0, ...heads.map((head) => head.length)]);
      const lines = Array.from({ length: count }, (_, index) => {
        const curves = heads.flatMap((head) => (head[index] ? [head[index]] : []));
        const look = { name: `singular value ${index + 1}`, label: String(index + 1), shade: spread(index, count) };
        return { ...look, ...known(times, times.map((_, place) => mean(curves.map((curve) => curve[place])))) };
      });
      const floor = FLOOR * highest([0, ...lines.flatMap(({ ys }) => ys)]);
      lines.forEach((line) => (line.direct = line.ys.at(-1) > floor));
      const greyed = run.noisy([product], state.layer);
      const what = plural(lines.length, "largest value", "largest values");
      const summary = `${run.whose(merged)}: the ${what}.${run.ruleNote}${greyNote(greyed)}`;
      return { lines, greyed, floor: floor || undefined, summary };
    },
  });
}

/** What remains when the change is cut to few directions, if any run was truncated. */
export function remains() {
  if (!runs.some((run) => run.truncation)) return;
  const note =
    "How much of the fall of the loss remains when the change of some weights is cut to its leading directions: " +
    "of the products of all heads, and of groups of matrices. The rest of the network stays as trained. " +
    "Dashed: weighted by what a direction does to the loss.";
  const plots = pair(gainPlot("head products", true), gainPlot("matrices", false));
  put("spectra-here", h("div", { id: "remains" }, h("h3", {}, "What remains at each rank"), h("p", {}, note), plots));
}

function gainPlot(what, ofHeads) {
  return new Plot({
    name: `Share of the gain by rank, ${what}`,
    title: `Share of the gain that remains, ${what}`,
    xLabel: "rank",
    still: true,
    key: true,
    floor: 0,
    height: 290,
    tip: (rank, line, y) => [line.name, `${percent(y, 3)} of the gain at rank ${Math.round(rank)}`],
    on: ["run"],
    content: () => {
      const curves = (here().truncation ?? []).filter(({ heads, ranks }) => heads === ofHeads && ranks.length);
      if (!curves.length) return { lines: [], summary: "This run was not truncated." };
      const groups = [...new Set(curves.map((curve) => curve.group))];
      const lines = curves.map(({ group, method, ranks, gains }) => {
        const plain = method === "plain";
        const name = plain ? group : `${group}, ${method}`;
        const look = { shade: spread(groups.indexOf(group), groups.length), style: plain ? "" : "dashed" };
        return { name, label: name, ...look, direct: true, xs: ranks, ys: gains };
      });
      const ranks = curves.map(({ functional, full }, at) => `${functional ?? "–"} of ${full} (${lines[at].name})`);
      const [{ gain, on }] = curves;
      const kept = `keeps ${percent(gain, 3)} of the gain${on ? `, of the loss on ${on}` : ""}`;
      return { lines, summary: `Functional rank, the least that ${kept}: ${ranks.join(", ")}.` };
    },
  });
}
