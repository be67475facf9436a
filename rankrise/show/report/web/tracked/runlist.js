// The runs beside one another: what they ended with, and their ranks by initialisation scale.

import { valueAt } from "../curves.js";
import { h, number, table } from "../dom.js";
import { changeOf, spread } from "../layout.js";
import { Plot } from "../plot.js";
import { choose, watch } from "../state.js";
import { LOOKS } from "./ranks.js";
import { here, mean } from "./runs.js";

export function runList(runs) {
  const place = document.getElementById("runs-here");
  const scores = ["accuracy", "perplexity"].filter((metric) => runs.some((run) => run.training[metric]));
  const rows = runs.map((run, index) => {
    const last = run.steps.length - 1;
    const ends = (product) => run.kinds.stable[product].flat().map((curve) => curve[last]);
    const rank = (product) => (run.empty || !run.products.includes(product) ? "–" : number(mean(ends(product)), 3));
    const final = (metric) => {
      const record = run.training[metric];
      return `${number(record?.last, 3)}${record && metric === "loss" ? run.whenLast(record) : ""}`;
    };
    const pick = h("button", { type: "button", onclick: () => choose({ run: index, place: Math.max(0, last), layer: -1, head: -1 }) }, "show");
    const scale = run.scale === null ? "–" : number(run.scale);
    const about = [run.name, run.study, scale, run.seed ?? "–", run.finished ? "yes" : "no", run.last];
    return [...about, rank("KQ"), rank("VO"), ...["loss", ...scores].map(final), pick];
  });
  const head = ["run", "data", "scale", "seed", "finished", "last step", "rank of ΔKQ", "rank of ΔVO", "last loss", ...scores, ""];
  const made = table("Stable ranks are means over all heads at the last step that has them", head, rows);
  place.append(h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs" }, made));
  if (new Set(runs.map((run) => run.scale).filter((scale) => scale !== null)).size < 2) return;
  const plots = ["KQ", "VO"].map((product) => scalePlot(runs, layersOf(product)));
  place.append(h("div", { class: "run" }, h("div", { class: "pair" }, plots.map((plot) => plot.figure))));
  document.getElementById("glance-here").append(h("div", { class: "run" }, scalePlot(runs, allHeads).figure));
}

/** Both products over all heads, beside the story. */
const allHeads = {
  name: "Stable rank of the change by initialisation scale, all heads",
  title: "At the end, by initialisation scale",
  lines: (alike) =>
    here().products.map((product) => ({
      name: `change of ${product}`,
      style: LOOKS[product],
      ...byScale(alike, (run) => run.kinds.stable[product]?.flat()),
    })),
};

/** One product, one line per layer. */
function layersOf(product) {
  return {
    name: `Stable rank of the change of ${product} by initialisation scale`,
    title: ["Stable rank of ", ...changeOf(product), " by initialisation scale"],
    labelled: 8,
    lines: (alike) =>
      here().layers.map((_, layer) => ({
        name: here().layerName(layer),
        label: `layer ${layer + 1}`,
        shade: spread(layer, here().layers.length),
        direct: true,
        ...byScale(alike, (run) => run.kinds.stable[product]?.[layer]),
      })),
  };
}

/** The mean of what curves of runs of a scale end with. */
function byScale(runs, curvesOf) {
  const ends = new Map();
  for (const run of runs) ends.set(run.scale, [...(ends.get(run.scale) ?? []), ...(curvesOf(run) ?? []).map((curve) => curve.at(-1))]);
  const xs = [...ends.keys()].filter((scale) => ends.get(scale).length).sort((a, b) => a - b);
  return { xs, ys: xs.map((scale) => mean(ends.get(scale))) };
}

/** Stable rank at the end against the initialisation scale, of the chosen run's data set. */
function scalePlot(runs, { lines, ...options }) {
  const plot = new Plot({
    ...options,
    xLabel: "initialisation scale",
    logX: () => true,
    padX: true,
    still: true,
    key: true,
    floor: 0,
    tip: (scale, line) => line && [line.name, `stable rank ${number(valueAt(line, scale), 3)} at scale ${number(scale, 2)}`],
  });
  watch(["run"], () => {
    const alike = runs.filter((run) => run.study === here().study && run.scale !== null && !run.empty);
    const scales = [...new Set(alike.map((run) => run.scale))].sort((a, b) => a - b);
    const summary = `${here().study}: mean over heads (and seeds) at the last measured step, scales ${scales.map((scale) => number(scale)).join(", ")}.`;
    if (scales.length < 2) return plot.show({ lines: [], summary: `${here().study} has one scale here.` });
    plot.show({ lines: lines(alike).filter((line) => line.xs.length), summary });
  });
  return plot;
}
