// Layers by heads at the chosen step: a table, so that it can be read, pressed and printed.

import { fixed, h, number } from "../dom.js";
import { absent, changeOf } from "../layout.js";
import { choose, state, watch } from "../state.js";
import { here } from "./runs.js";

/** With more heads, cells have colours alone. */
const MOST_WRITTEN = 16;

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
    if (focused) document.getElementById(focused)?.focus();
  });
  document.getElementById("heads-here").append(h("div", { class: "run" }, holder));
}

/** A single head in words: a map of one cell shows nothing. */
function onlyHead(run) {
  const values = run.products.map((product) => `${number(run.ranks[product][0][0][state.place], 3)} (change of ${product})`);
  return `One head was tracked, in ${run.layerName(0)}. Its ${run.rankName} at ${run.moment(run.steps[state.place])}: ${values.join(", ")}.`;
}

/** The largest rank of either product anywhere, so that colours keep their meaning as the step moves. */
function highestRank(run) {
  run.highest ??= {};
  const all = run.products.flatMap((product) => run.ranks[product].flat(2));
  return (run.highest[run.kind] ??= all.reduce((a, b) => Math.max(a, b), 1.01));
}

function heatMap(run, product) {
  const widest = run.layers.reduce((most, layer) => Math.max(most, layer.heads.length), 0);
  const { heads } = run.layers.find((layer) => layer.heads.length === widest);
  const columns = heads.map((head) => h("th", { scope: "col" }, String(head + 1)));
  const rows = run.layers.map((layer, index) => {
    const cells = layer.heads.map((_, slot) => heatCell(run, product, index, slot, widest));
    return h("tr", {}, h("th", { scope: "row", title: layer.name }, rowName(layer)), cells);
  });
  const when = ` at ${run.moment(run.steps[state.place])}, layers down, heads across`;
  const caption = h("caption", {}, `${run.rankTitle} of `, changeOf(product), when);
  const head = h("thead", {}, h("tr", {}, h("td", {}), columns));
  const made = h("table", { class: `heat${widest > MOST_WRITTEN ? " small" : ""}` }, caption, head, h("tbody", {}, rows));
  made.style.setProperty("--heads", widest);
  made.style.setProperty("--letters", run.layers.reduce((most, layer) => Math.max(most, rowName(layer).length), 0));
  const label = `${run.rankTitle} of every head, ${product}`;
  return h("div", { class: "scroll measured", tabindex: 0, role: "region", "aria-label": label }, made);
}

const rowName = (layer) => layer.title.replace("layer ", "");

function heatCell(run, product, layer, slot, widest) {
  const value = run.ranks[product][layer][slot][state.place];
  const share = Math.max(0, Math.min(1, (value - 1) / (highestRank(run) - 1)));
  const chosen = state.layer === layer && state.head === slot;
  const button = h(
    "button",
    {
      type: "button",
      id: `heat-${product}-${layer}-${slot}`,
      "aria-pressed": String(chosen),
      "aria-label": `${run.layerName(layer)}, ${run.headName(layer, slot)}: ${run.rankName} ${number(value, 3)}`,
      title: `${run.layerName(layer)}, ${run.headName(layer, slot)}: ${number(value, 3)}`,
      onclick: () => choose(chosen ? { layer: -1, head: -1 } : { layer, head: slot }),
    },
    widest > MOST_WRITTEN ? "" : fixed(value, value < 10 ? 2 : value < 100 ? 1 : 0),
  );
  button.style.setProperty("--heat", `${Math.round(100 * share)}%`);
  if (share > 0.55) button.classList.add("hot");
  return h("td", {}, button);
}
