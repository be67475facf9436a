// Rank through training: at a glance, layer by layer, of other matrices; and of every head at the chosen step.

import { highest, known, lowest, mean, spread, valueAt } from "../data.js";
import { absent, capitalised, changeOf, fixed, h, number, plural, put, scrolling } from "../dom.js";
import { pair } from "../plot.js";
import { choose, state, watch } from "../state.js";
import { here, MATRICES, plotOfTime, PRODUCTS } from "./run.js";

export const LOOKS = { KQ: "kq", VO: "vo dashed" };
const MOST_HEADS = 24; // with more, only the chosen head has a line
const MOST_KEYED = 12;
const MOST_WRITTEN = 16; // with more heads across, cells have colours alone

/** Mean over all heads, of both products. */
export function glance() {
  const plot = plotOfTime({
    key: true,
    floor: 0,
    height: 250,
    tip: rankTip,
    on: ["rank"],
    content: (run) => {
      const all = run.headCount === 1 ? "the only head" : `all ${run.members}`;
      const words = `${run.rankName} of what was learned, ${all}`;
      const name = `${capitalised(run.rankName)} of the change, ${all}`;
      const shown = { name, title: run.alone ? capitalised(words) : `${run.name}: ${words}` };
      return { ...shown, ...(run.empty ? { lines: [], summary: run.about_stages } : meanRanks(run)) };
    },
  });
  put("glance-here", plot.figure);
}

function meanRanks(run) {
  const ofHeads = run.products.map((product) => {
    const look = { name: `change of ${product}`, product, style: LOOKS[product] };
    return { ...look, ...run.over(run.ranks[product].flat()) };
  });
  const curves = run.matrices.flatMap(({ kinds }) => (run.kind in kinds ? [kinds[run.kind]] : []));
  const ofMatrices = { name: "change of matrices", product: MATRICES, style: "kq", ...run.over(curves) };
  const lines = ofHeads.length ? ofHeads : [ofMatrices];
  const ends = lines.map(({ name, ys }) => `${number(ys.at(-1), 3)} (${name})`).join(", ");
  const when = run.alone ? `At ${run.end}` : `${run.name}, at ${run.end}`;
  const greyed = run.noisy(run.products.length ? run.products : [MATRICES]);
  const over = run.headCount === 1 ? "" : `; mean and standard deviation over ${run.members}`;
  const unchanged = lines.every(({ ys }) => ys.at(-1) === 0);
  const course = unchanged ? `${when}, nothing has changed.` : `${when}: ${ends}${over}.`;
  return { lines, greyed, summary: `${course}${run.ruleNote}${run.greyNote(greyed, run.members)}` };
}

function rankTip(moment, line, y) {
  const run = here();
  const place = run.nearest(moment);
  const above = line.band ? valueAt({ xs: line.xs, ys: line.band.high }, moment) - y : null;
  const members = line.product === MATRICES ? MATRICES : "heads";
  const deviation = above === null ? "" : ` ± ${number(above, 2)} over ${members}`;
  const rounding = line.product ? run.roundingNote(line.product, line.layer ?? -1, place) : [];
  const name = line.module ? `${line.name}, ${line.module}` : line.name;
  return [name, `${run.rankName} ${number(y, 3)}${deviation}`, run.moment(run.steps[place]), ...rounding];
}

/** A plot for each product: every layer's mean, or one layer with its band and its heads. */
export function ranks() {
  put("ranks-here", pair(...PRODUCTS.map(productRanks), matrixRanks()));
}

function productRanks(product) {
  return plotOfTime({
    labelled: 8,
    key: true,
    floor: 0,
    height: 290,
    tip: rankTip,
    on: ["rank", "layer", "head"],
    content: (run) => {
      if (!run.products.includes(product)) return null;
      const rank = capitalised(run.rankName);
      const shown = { name: `${rank} of the change of ${product}`, title: [`${rank} of `, ...changeOf(product)] };
      if (run.empty) return { ...shown, lines: [], summary: run.about_stages };
      const lines = state.layer < 0 ? layerLines(run, product) : headLines(run, product, state.layer);
      const greyed = run.noisy([product], state.layer);
      const summary = `${productSummary(run, product)}${run.ruleNote}${run.greyNote(greyed)}`;
      return { ...shown, lines: lines.filter(({ xs }) => xs.length), greyed, summary };
    },
  });
}

function layerLines(run, product) {
  return run.layers.map(({ title, name }, layer) => {
    const { xs, ys } = run.over(run.ranks[product][layer]);
    const look = { label: `layer ${layer + 1}`, shade: spread(layer, run.layers.length), direct: true };
    return { name: title, module: name, product, layer, ...look, xs, ys };
  });
}

function headLines(run, product, layer) {
  const curves = run.ranks[product][layer];
  const look = { label: "mean", style: LOOKS[product], direct: true, weight: Infinity };
  const ofAll = { name: `${run.layerName(layer)}, mean over heads`, product, layer, ...look, ...run.over(curves) };
  const ofHeads = curves.map((curve, slot) => {
    const chosen = slot === state.head;
    const label = run.headName(layer, slot);
    const style = chosen ? "chosen" : "thin";
    const name = `${run.layerName(layer)}, ${label}`;
    return { name, label, style, direct: chosen, unkeyed: !chosen, ...known(run.times, curve) };
  });
  return [ofAll, ...ofHeads.filter((_, slot) => curves.length <= MOST_HEADS || slot === state.head)];
}

/** Where the lines end, and between which values. */
function productSummary(run, product) {
  const ofHeads = state.layer >= 0;
  const ends = ofHeads
    ? run.ranks[product][state.layer].map((curve) => curve.at(-1))
    : run.ranks[product].map((curves) => mean(curves.map((curve) => curve.at(-1))));
  const found = ends.filter((end) => Number.isFinite(end));
  if (!found.length) return `The ${run.rankName} is not recorded there.`;
  const [least, most] = [lowest(found), highest(found)];
  if (most === 0) return `At ${run.end}, nothing has changed.`;
  const [low, high] = [number(least, 3), number(most, 3)];
  const { name, size } = run.layers[ofHeads ? state.layer : 0];
  const means = `Mean over heads at ${run.end}`;
  let course = "";
  if (ends.length === 1) {
    course = run.headCount === 1 ? `${low} at ${run.end}` : `${means}: ${low}`;
  } else if (ofHeads) {
    const range = `from ${low} to ${high} over ${plural(ends.length, "head")}`;
    course = `${name}: at ${run.end}: ${number(mean(ends), 3)} on average, ${range}`;
  } else {
    const [lowLayer, highLayer] = [least, most].map((end) => run.layerName(ends.indexOf(end)));
    course = `${means}: lowest in ${lowLayer} (${low}), highest in ${highLayer} (${high})`;
  }
  return `${course}; a head’s size is ${size}.`;
}

/** A line for each tracked matrix that belongs to no head. */
function matrixRanks() {
  return plotOfTime({
    key: true,
    floor: 0,
    height: 290,
    tip: rankTip,
    on: ["rank"],
    content: (run) => {
      if (!run.matrices.length) return null;
      const title = `${capitalised(run.rankName)} of the change of other matrices`;
      const lines = keyed(
        run.matrices.map(({ name, kinds }, layer) => {
          return { name, product: MATRICES, layer, ...known(run.times, kinds[run.kind] ?? []) };
        }),
      );
      const ends = lines.map(({ ys }) => ys.at(-1));
      const [low, high] = [number(lowest(ends), 3), number(highest(ends), 3)];
      const range = lines.length > 1 ? `from ${low} to ${high}` : low;
      const greyed = run.noisy([MATRICES]);
      const notes = `${run.ruleNote}${run.greyNote(greyed, MATRICES)}`;
      const course = `${plural(lines.length, "matrix", "matrices")}: ${range} at the end.${notes}`;
      const summary = lines.length ? course : `The ${run.rankName} of these matrices is not recorded.`;
      return { name: title, title, lines, greyed, summary };
    },
  });
}

/** The lines that have points, in the shades of their order, named above if they are few. */
export function keyed(lines) {
  const found = lines.filter(({ xs }) => xs.length);
  const unkeyed = found.length > MOST_KEYED;
  return found.map((line, index) => ({ ...line, shade: spread(index, found.length), unkeyed }));
}

/** Layers by heads at the chosen step: a table, so that it can be read, pressed and printed. */
export function heads() {
  const holder = h("div", { class: "pair" });
  watch(["run", "rank", "place", "layer", "head"], () => {
    const run = here();
    document.getElementById("heads-note").hidden = run.headCount < 2;
    if (!run.layers.length) return holder.replaceChildren(absent("This run has no heads."));
    if (run.empty) return holder.replaceChildren(absent(run.about_stages));
    if (run.headCount === 1) return holder.replaceChildren(h("p", {}, onlyHead(run)));
    const focused = holder.contains(document.activeElement) ? document.activeElement.id : null;
    holder.replaceChildren(...run.products.map((product) => heatMap(run, product)));
    document.getElementById(focused)?.focus();
  });
  put("heads-here", holder);
}

/** A map of one cell would show nothing. */
function onlyHead(run) {
  const rankOf = (product) => number(run.ranks[product][0][0][state.place], 3);
  const values = run.products.map((product) => `${rankOf(product)} (change of ${product})`);
  const when = run.moment(run.steps[state.place]);
  return `One head was tracked, in ${run.layerName(0)}. Its ${run.rankName} at ${when}: ${values.join(", ")}.`;
}

function heatMap(run, product) {
  const widest = highest(run.layers.map((layer) => layer.heads.length));
  const longest = run.layers.find((layer) => layer.heads.length === widest).heads;
  const rowName = ({ title }) => title.replace("layer ", "");
  const rows = run.layers.map((layer, index) => {
    const cells = layer.heads.map((_, slot) => heatCell(run, product, index, slot, widest));
    return h("tr", {}, h("th", { scope: "row", title: layer.name }, rowName(layer)), cells);
  });
  const rank = capitalised(run.rankName);
  const when = ` at ${run.moment(run.steps[state.place])}, layers down, heads across`;
  const caption = h("caption", {}, `${rank} of `, changeOf(product), when);
  const columns = longest.map((head) => h("th", { scope: "col" }, String(head + 1)));
  const top = h("thead", {}, h("tr", {}, h("td"), columns));
  const made = h("table", { class: widest > MOST_WRITTEN ? "heat small" : "heat" }, caption, top, h("tbody", {}, rows));
  made.style.setProperty("--heads", widest);
  made.style.setProperty("--letters", highest(run.layers.map((layer) => rowName(layer).length)));
  return scrolling(`${rank} of every head, ${product}`, made, "measured");
}

function heatCell(run, product, layer, slot, widest) {
  // Colours keep their meaning as the step moves: the strongest is the highest rank anywhere.
  run.highest ??= {};
  const all = () => run.products.flatMap((one) => run.ranks[one].flat(2)).filter(Number.isFinite);
  run.highest[run.kind] ??= Math.max(1.01, highest(all()));
  const value = run.ranks[product][layer][slot][state.place];
  const share = Math.max(0, Math.min(1, (value - 1) / (run.highest[run.kind] - 1))) || 0;
  const chosen = state.layer === layer && state.head === slot;
  const name = `${run.layerName(layer)}, ${run.headName(layer, slot)}: `;
  const cell = h(
    "button",
    {
      type: "button",
      id: `heat-${product}-${layer}-${slot}`,
      "aria-pressed": String(chosen),
      "aria-label": `${name}${run.rankName} ${number(value, 3)}`,
      title: `${name}${number(value, 3)}`,
      onclick: () => choose(chosen ? { layer: -1, head: -1 } : { layer, head: slot }),
    },
    widest > MOST_WRITTEN ? "" : fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0),
  );
  cell.style.setProperty("--heat", `${Math.round(100 * share)}%`);
  if (share > 0.55) cell.classList.add("hot");
  return h("td", {}, cell);
}
