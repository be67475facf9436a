// Rank through training, stable or another: at a glance, layer by layer, and of matrices that belong to no head.

import { valueAt } from "../curves.js";
import { h, number, plural } from "../dom.js";
import { changeOf, spread } from "../layout.js";
import { Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { follow, timePlot } from "./clock.js";
import { runChoice } from "./controls.js";
import { here, MATRICES, mean } from "./runs.js";

export const LOOKS = { KQ: "kq", VO: "vo dashed" };
const MOST_HEADS = 24;
const MOST_KEYED = 12;

/** Both products, mean over every head of the run. */
export function glance(runs) {
  const plot = new Plot({
    ...timePlot,
    name: "Stable rank of the change, all heads",
    title: "Stable rank of what was learned, all heads",
    xLabel: "",
    key: true,
    floor: 0,
    height: 250,
    tip: rankTip,
  });
  watch(["run", "rank", "logTime"], () => {
    const run = here();
    plot.options.xLabel = run.clock;
    const all = run.headCount === 1 ? "the only head" : `all ${run.products.length ? "heads" : MATRICES}`;
    const title = `${run.rankTitle} of what was learned, ${all}`;
    plot.rename(`${run.rankTitle} of the change, ${all}`, runs.length > 1 ? `${run.name}: ${title[0].toLowerCase()}${title.slice(1)}` : title);
    if (run.empty) return plot.show({ lines: [], rules: run.rules, summary: run.about_stages });
    const ofHeads = run.products.map((product) => ({
      name: `change of ${product}`,
      product,
      style: LOOKS[product],
      ...run.over(run.ranks[product].flat()),
    }));
    const ofMatrices = { name: "change of matrices", product: MATRICES, style: "kq", ...run.over(run.matrixCurves) };
    const lines = ofHeads.length ? ofHeads : [ofMatrices];
    const members = ofHeads.length ? "heads" : MATRICES;
    const ends = lines.map((line) => `${number(line.ys[line.ys.length - 1], 3)} (${line.name})`).join(", ");
    const when = runs.length > 1 ? `${run.name}, at ${run.end}` : `At ${run.end}`;
    const greyed = run.noisy(run.products.length ? run.products : [MATRICES]);
    const over = run.headCount === 1 ? "" : `; mean and standard deviation over ${members}`;
    const unchanged = lines.every(({ ys }) => ys[ys.length - 1] === 0);
    const told = unchanged ? `${when}, nothing has changed.` : `${when}: ${ends}${over}.`;
    plot.show({ lines, rules: run.rules, greyed, summary: `${told}${run.ruleNote}${run.greyNote(greyed, members)}` });
  });
  follow(plot);
  const choice = runChoice(runs, "run-above", `The plots show one run of ${runs.length}: `);
  document.getElementById("glance-here").append(h("div", { class: "run" }, h("div", { class: "chosen-run" }, choice), plot.figure));
}

function rankTip(moment, line) {
  if (!line) return null;
  const run = here();
  const place = run.nearest(moment);
  const value = valueAt(line, moment);
  const members = line.product === MATRICES ? MATRICES : "heads";
  const spread = line.band ? ` ± ${number(valueAt({ xs: line.xs, ys: line.band.high }, moment) - value, 2)} over ${members}` : "";
  const name = line.module ? `${line.name}, ${line.module}` : line.name;
  const rounding = line.product ? run.roundingNote(line.product, line.layer ?? -1, place) : null;
  return [name, `${run.rankName} ${number(value, 3)}${spread}`, run.moment(run.steps[place]), ...(rounding ? [rounding] : [])];
}

/** A plot for each product: every layer's mean, or one layer with its band and its heads. */
export function ranks() {
  const holder = h("div", { class: "pair" });
  const plots = new Map(["KQ", "VO"].map((product) => [product, rankPlot(product)]));
  const matrices = matrixPlot();
  watch(["run"], () => {
    const figures = here().products.map((product) => plots.get(product).figure);
    holder.replaceChildren(...figures, ...(here().matrices.length ? [matrices.figure] : []));
  });
  document.getElementById("ranks-here").append(h("div", { class: "run" }, holder));
}

/** A line for each tracked matrix that belongs to no head. */
function matrixPlot() {
  const plot = new Plot({ ...timePlot, name: "Rank of the change of other matrices", title: "", xLabel: "", key: true, floor: 0, height: 290, tip: rankTip });
  watch(["run", "rank", "logTime"], () => {
    const run = here();
    plot.options.xLabel = run.clock;
    plot.rename(`${run.rankTitle} of the change of other matrices`, `${run.rankTitle} of the change of other matrices`);
    const all = run.matrices.map(({ name, kinds }, layer) => ({ name, product: MATRICES, layer, ...run.line(kinds[run.kind] ?? []) }));
    const drawn = all.filter((line) => line.xs.length);
    const lines = drawn.map((line, index) => ({ ...line, shade: spread(index, drawn.length), unkeyed: drawn.length > MOST_KEYED }));
    const ends = lines.map((line) => line.ys[line.ys.length - 1]);
    const range = lines.length > 1 ? `from ${number(Math.min(...ends), 3)} to ${number(Math.max(...ends), 3)}` : number(ends[0], 3);
    const greyed = run.noisy([MATRICES]);
    const told = `${plural(lines.length, "matrix", "matrices")}: ${range} at the end.${run.ruleNote}${run.greyNote(greyed, MATRICES)}`;
    const summary = lines.length ? told : `The ${run.rankName} of these matrices is not recorded.`;
    plot.show({ lines, rules: run.rules, greyed, summary });
  });
  follow(plot);
  return plot;
}

function rankPlot(product) {
  const plot = new Plot({
    ...timePlot,
    name: `Stable rank of the change of ${product}`,
    title: ["Stable rank of ", ...changeOf(product)],
    xLabel: "",
    labelled: 8,
    key: true,
    floor: 0,
    height: 290,
    tip: rankTip,
  });
  watch(["run", "rank", "layer", "head", "logTime"], () => {
    const run = here();
    plot.options.xLabel = run.clock;
    plot.rename(`${run.rankTitle} of the change of ${product}`, [`${run.rankTitle} of `, ...changeOf(product)]);
    if (run.empty || !run.products.includes(product)) return plot.show({ lines: [], summary: run.about_stages });
    const lines = state.layer < 0 ? layerLines(run, product) : headLines(run, product, state.layer);
    const greyed = run.noisy([product], state.layer);
    plot.show({ lines, rules: run.rules, greyed, summary: `${rankSummary(run, product)}${run.ruleNote}${run.greyNote(greyed)}` });
  });
  follow(plot);
  return plot;
}

function layerLines(run, product) {
  return run.layers.map((layer, index) => {
    const { xs, ys } = run.over(run.ranks[product][index]);
    const look = { label: `layer ${index + 1}`, shade: spread(index, run.layers.length), direct: true };
    return { name: run.layerName(index), module: layer.name, product, layer: index, ...look, xs, ys };
  });
}

function headLines(run, product, layer) {
  const curves = run.ranks[product][layer];
  const look = { label: "mean", style: LOOKS[product], direct: true, weight: Infinity };
  const line = { name: `${run.layerName(layer)}, mean over heads`, product, layer, ...look, ...run.over(curves) };
  const heads = curves.length > MOST_HEADS && state.head < 0 ? [] : curves.map((curve, slot) => ({
    name: `${run.layerName(layer)}, ${run.headName(layer, slot)}`,
    label: run.headName(layer, slot),
    style: slot === state.head ? "chosen" : "thin",
    direct: slot === state.head,
    unkeyed: slot !== state.head,
    ...run.line(curve),
  }));
  return [line, ...heads.filter((_, slot) => curves.length <= MOST_HEADS || slot === state.head)];
}

function rankSummary(run, product) {
  const last = run.steps.length - 1;
  const ofHeads = state.layer >= 0;
  const ends = ofHeads
    ? run.ranks[product][state.layer].map((curve) => curve[last])
    : run.layers.map((_, layer) => run.layerMean(product, layer, last));
  const lowest = ends.reduce((a, b) => Math.min(a, b));
  const highest = ends.reduce((a, b) => Math.max(a, b));
  if (highest === 0) return `At ${run.end}, nothing has changed.`;
  const [low, high] = [number(lowest, 3), number(highest, 3)];
  const { name, size } = run.layers[ofHeads ? state.layer : 0];
  const where = (value) => run.layerName(ends.indexOf(value));
  const onAverage = `${name}: at ${run.end}: ${number(mean(ends), 3)} on average, from ${low} to ${high} over ${plural(ends.length, "head")}`;
  const byLayer = `Mean over heads at ${run.end}: lowest in ${where(lowest)} (${low}), highest in ${where(highest)} (${high})`;
  const one = run.headCount === 1 ? `${low} at ${run.end}` : `Mean over heads at ${run.end}: ${low}`;
  const told = ends.length === 1 ? one : ofHeads ? onAverage : byLayer;
  return `${told}; a head’s size is ${size}.`;
}
