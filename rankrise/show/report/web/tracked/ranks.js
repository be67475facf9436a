// Rank through training: at a glance, layer by layer, of other matrices, of several runs; and of every head at a step.

import { choose, state, watch } from "../controls.js";
import { highest, known, mean, spread, valueAt } from "../data.js";
import { absent, capitalised, changeOf, fixed, h, number, put, scrolling, table } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { greyNote, here, keyed, LOOKS, nearestTo, plotOfTime, PRODUCTS, runs, showRun } from "./run.js";

const MOST_HEADS = 24; // with more, only the chosen head has a line
const MOST_WRITTEN = 16; // with more heads across, cells have colours alone
const MOST_BESIDE = 12; // with more lines, none could be told from another

/** At a glance, the mean over all heads; and a plot for each product and for other matrices. */
export function ranks() {
  put("glance-here", plotOfRanks(meanRanks, { height: 250 }).figure);
  const ofProducts = PRODUCTS.map((product) => plotOfRanks((run) => productRanks(run, product), { labelled: 8 }));
  put("ranks-here", pair(...ofProducts, plotOfRanks(matrixRanks)));
}

/** A plot of ranks: `describe(run)` gives its name, title and lines. */
function plotOfRanks(describe, options = {}) {
  return plotOfTime({
    key: true,
    floor: 0,
    tip: rankTip,
    on: ["rank", "layer", "head"],
    ...options,
    content: (run) => {
      const shown = describe(run);
      if (!shown) return null;
      if (run.empty) return { ...shown, lines: [], summary: run.about_stages };
      const greyed = run.noisy();
      return { ...shown, greyed, summary: run.endsOf(shown.lines) + greyNote(greyed) };
    },
  });
}

/** Mean over all heads, of both products; the other matrices, of a run without heads. */
function meanRanks(run) {
  const words = `${run.rankName} of what was learned`;
  const title = runs.length === 1 ? capitalised(words) : `${run.name}: ${words}`;
  const name = `${capitalised(run.rankName)} of the change, all heads`;
  const lines = run.products.map((product) => {
    return { name: `change of ${product}`, style: LOOKS[product], ...run.over(run.ranks[product].flat()) };
  });
  if (lines.length) return { name, title, lines };
  const curves = run.matrices.flatMap(({ kinds }) => (run.kind in kinds ? [kinds[run.kind]] : []));
  return { name, title, lines: [{ name: "change of matrices", style: "kq", ...run.over(curves) }] };
}

/** Every layer's mean, or the chosen layer's with its band and its heads. */
function productRanks(run, product) {
  if (!run.products.includes(product)) return null;
  const rank = capitalised(run.rankName);
  const shown = { name: `${rank} of the change of ${product}`, title: [`${rank} of `, ...changeOf(product)] };
  if (state.layer < 0) {
    const lines = run.layers.map(({ title: name, name: module }, layer) => {
      const { xs, ys } = run.over(run.ranks[product][layer]);
      const look = { label: `layer ${layer + 1}`, shade: spread(layer, run.layers.length), direct: true };
      return { name, module, ...look, xs, ys };
    });
    return { ...shown, lines };
  }
  const curves = run.ranks[product][state.layer];
  const owner = run.layers[state.layer].title;
  const look = { label: "mean", style: LOOKS[product], direct: true };
  const ofAll = { name: `${owner}, mean over heads`, ...look, ...run.over(curves) };
  const ofHeads = curves.flatMap((curve, slot) => {
    const chosen = slot === state.head;
    if (curves.length > MOST_HEADS && !chosen) return [];
    const label = run.headName(state.layer, slot);
    const style = { style: chosen ? "chosen" : "thin", direct: chosen, unkeyed: !chosen };
    return [{ name: `${owner}, ${label}`, label, ...style, ...known(run.times, curve) }];
  });
  return { ...shown, lines: [ofAll, ...ofHeads] };
}

/** A line for each tracked matrix that belongs to no head. */
function matrixRanks(run) {
  if (!run.matrices.length) return null;
  const title = `${capitalised(run.rankName)} of the change of other matrices`;
  const lines = run.matrices.map(({ name, kinds }) => ({ name, ...known(run.times, kinds[run.kind] ?? []) }));
  return { name: title, title, lines: keyed(lines) };
}

function rankTip(moment, line, y) {
  const run = here();
  const deviation = line.band ? ` ± ${number(valueAt({ xs: line.xs, ys: line.band.high }, moment) - y, 2)}` : "";
  const name = line.module ? `${line.name}, ${line.module}` : line.name;
  return [name, `${run.rankName} ${number(y, 3)}${deviation}`, run.moment(run.steps[nearestTo(run.times, moment)])];
}

/** Layers by heads at the chosen step: a table, so that it can be read, pressed and printed. */
export function heads() {
  const holder = h("div", { class: "pair" });
  watch(["run", "rank", "place", "layer", "head"], () => {
    const run = here();
    const none = run.empty ? run.about_stages : "This run has no heads.";
    if (run.empty || !run.layers.length) return holder.replaceChildren(absent(none));
    const focused = holder.contains(document.activeElement) ? document.activeElement.id : null;
    holder.replaceChildren(...run.products.map((product) => heatMap(run, product)));
    document.getElementById(focused)?.focus();
  });
  put("heads-here", holder);
}

function heatMap(run, product) {
  const widest = highest(run.layers.map((layer) => layer.heads.length));
  const longest = run.layers.find((layer) => layer.heads.length === widest).heads;
  const rowName = ({ title }) => title.replace("layer ", "");
  // Colours keep their meaning as the step moves: the strongest is the highest rank anywhere.
  run.highest ??= {};
  const all = () => run.products.flatMap((one) => run.ranks[one].flat(2)).filter(Number.isFinite);
  run.highest[run.kind] ??= Math.max(1.01, highest(all()));
  const rows = run.layers.map((layer, index) => {
    const cells = layer.heads.map((_, slot) => h("td", {}, heatCell(run, product, index, slot, widest > MOST_WRITTEN)));
    return h("tr", {}, h("th", { scope: "row", title: layer.name }, rowName(layer)), cells);
  });
  const rank = capitalised(run.rankName);
  const caption = [`${rank} of `, changeOf(product), ` at ${run.now}, layers down, heads across`];
  const top = h("tr", {}, h("td"), longest.map((head) => h("th", { scope: "col" }, String(head + 1))));
  const kind = widest > MOST_WRITTEN ? "heat small" : "heat";
  const parts = [h("caption", {}, caption.flat()), h("thead", {}, top), h("tbody", {}, rows)];
  const made = h("table", { class: kind }, parts);
  made.style.setProperty("--heads", widest);
  made.style.setProperty("--letters", highest(run.layers.map((layer) => rowName(layer).length)));
  return scrolling(`${rank} of every head, ${product}`, made, "measured");
}

function heatCell(run, product, layer, slot, small) {
  const value = run.ranks[product][layer][slot][state.place];
  const share = Math.max(0, Math.min(1, (value - 1) / (run.highest[run.kind] - 1))) || 0;
  const chosen = state.layer === layer && state.head === slot;
  const name = `${run.layers[layer].title}, ${run.headName(layer, slot)}: `;
  const attributes = {
    type: "button",
    id: `heat-${product}-${layer}-${slot}`,
    class: share > 0.55 ? "hot" : null,
    "aria-pressed": String(chosen),
    "aria-label": `${name}${run.rankName} ${number(value, 3)}`,
    title: `${name}${number(value, 3)}`,
    onclick: () => choose(chosen ? { layer: -1, head: -1 } : { layer, head: slot }),
  };
  const cell = h("button", attributes, small ? "" : fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0));
  cell.style.setProperty("--heat", `${Math.round(100 * share)}%`);
  return cell;
}

/** A table of all runs, with a button to show each. */
export function runList() {
  const scores = ["accuracy", "perplexity"].filter((metric) => runs.some((run) => run.training[metric]));
  const rows = runs.map((run, index) => {
    const rank = (product) => number(mean((run.kinds.stable[product] ?? []).flat().map((curve) => curve.at(-1))), 3);
    const last = (metric) => number(run.training[metric]?.last, 3);
    const show = h("button", { type: "button", onclick: () => showRun(index) }, "show");
    const facts = [run.name, run.study, number(run.scale), run.seed ?? "–", run.finished ? "yes" : "no", run.last];
    return [...facts, ...PRODUCTS.map(rank), last("loss"), ...scores.map(last), show];
  });
  const about = ["run", "data", "scale", "seed", "finished", "last step", "rank of ΔKQ", "rank of ΔVO", "last loss"];
  const caption = "Stable ranks are means over all heads at the last step that has them";
  const made = table(caption, [...about, ...scores, ""], rows);
  document.getElementById("runs-here").append(scrolling("Runs", made));
}

/** Through training, the runs that have the chosen one's layers and heads: seeds, scales, a run and its history. */
export function beside() {
  if (runs.length > 1) put("runs-here", pair(...PRODUCTS.map(besidePlot)));
}

function besidePlot(product) {
  return new Plot({
    key: true,
    floor: 0,
    height: 290,
    tip: (moment, line, y) => [line.name, `${number(y, 3)} at ${number(moment, 3)}`],
    on: ["run", "rank", "layer", "logTime"],
    content: () => {
      const run = here();
      const form = ({ products, layers }) => JSON.stringify([products, layers.map(({ name, heads }) => [name, heads])]);
      const found = runs.filter((one) => !one.empty && form(one) === form(run));
      if (found.length < 2 || found.length > MOST_BESIDE || !run.products.includes(product)) return null;
      const rank = capitalised(run.rankName);
      const where = run.layers[state.layer]?.title ?? "all heads";
      const name = `${rank} of the change of ${product}, runs with the same layers`;
      const title = [`${rank} of `, ...changeOf(product), `, ${where}, runs with the same layers`];
      const clock = found.every((one) => one.epoch_steps) ? "epoch" : "step"; // epochs if every run knows them
      const timesOf = (one) => (clock === "epoch" ? one.times : one.steps);
      const lines = found.map((one, index) => {
        const curves = state.layer < 0 ? one.ranks[product].flat() : one.ranks[product][state.layer];
        const { xs, ys } = one.over(curves, timesOf(one));
        const style = one.history ? "dashed" : ""; // it may lie on the run that it is of
        return { name: one.name, shade: spread(index, found.length), style, xs, ys };
      });
      const greyed = found.flatMap((one) => one.noisy(timesOf(one)));
      const ends = lines.map((line) => `${line.name} ${number(line.ys.at(-1), 3)}`).join(", ");
      const summary = `At the last step with ranks: ${ends}; mean over heads.${greyNote(greyed)}`;
      return { name, title, xLabel: clock, logX: state.logTime, lines, greyed, summary };
    },
  });
}
