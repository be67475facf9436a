// What remains of training when its change is cut to few directions, of runs that were truncated.

import { valueAt } from "../curves.js";
import { h, number } from "../dom.js";
import { spread } from "../layout.js";
import { Plot } from "../plot.js";
import { watch } from "../state.js";
import { here } from "./runs.js";

const NOTE =
  "How much of the fall of the loss remains when the change of some weights is cut to its leading directions: " +
  "of the products of all heads, and of groups of matrices. The rest of the network stays as trained. " +
  "Dashed: weighted by what a direction does to the loss.";

/** A plot of head products and one of matrices, below the spectra; nothing where no run was truncated. */
export function remains(runs) {
  if (!runs.some((run) => run.truncation)) return;
  const plots = [
    gainPlot("head products", (curve) => curve.heads),
    gainPlot("matrices", (curve) => !curve.heads),
  ];
  const note = h("p", {}, NOTE);
  document.getElementById("spectra-here").append(
    h("div", { class: "run", id: "remains" }, h("h3", {}, "What remains at each rank"), note, h("div", { class: "pair" }, plots.map((plot) => plot.figure))),
  );
}

function nameOf(curve) {
  return curve.method === "plain" ? curve.group : `${curve.group}, ${curve.method}`;
}

/** In words, what the functional rank keeps. */
function kept(curve) {
  const on = curve?.on ? `, of the loss on ${curve.on}` : "";
  return `keeps ${number(100 * (curve?.gain ?? 0.99), 3)} % of the gain${on}`;
}

function gainPlot(name, wanted) {
  const plot = new Plot({
    name: `Share of the gain by rank, ${name}`,
    title: `Share of the gain that remains, ${name}`,
    xLabel: "rank",
    logX: () => true,
    padX: true,
    still: true,
    key: true,
    floor: 0,
    height: 290,
    tip: (rank, line) => line && [line.name, `${number(100 * valueAt(line, rank), 3)} % of the gain at rank ${Math.round(rank)}`],
  });
  watch(["run"], () => {
    const curves = (here().truncation ?? []).filter((curve) => wanted(curve) && curve.ranks.length);
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
    const known = curves.filter((curve) => curve.functional !== null);
    const ranks = known.map((curve) => `${curve.functional} of ${curve.full} (${nameOf(curve)})`);
    const told = `Functional rank, the least that ${kept(curves[0])}: ${ranks.join(", ") || "none"}.`;
    plot.show({ lines, summary: curves.length ? told : "This run was not truncated." });
  });
  return plot;
}
