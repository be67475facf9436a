// Several runs: what they ended with, ranks by initialisation scale, and runs of one network beside one another.

import { state } from "../controls.js";
import { known, mean, spread } from "../data.js";
import { capitalised, changeOf, h, number, put, scrolling, table } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { greyNote, here, LOOKS, PRODUCTS, runs, showRun } from "./run.js";

const MOST_BESIDE = 12; // with more lines, none could be told from another

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

/** Stable rank at the end against the initialisation scale, over all heads and by layer. */
export function byScale() {
  if (new Set(runs.flatMap((run) => run.scale ?? [])).size < 2) return;
  const ofHeads = () =>
    here().products.map((product) => {
      const look = { name: `change of ${product}`, style: LOOKS[product] };
      return { ...look, curvesOf: (run) => run.kinds.stable[product]?.flat() };
    });
  const ofLayers = (product) => () =>
    here().layers.map(({ title }, layer, all) => {
      const look = { label: `layer ${layer + 1}`, shade: spread(layer, all.length), direct: true };
      return { name: title, ...look, curvesOf: (run) => run.kinds.stable[product]?.[layer] };
    });
  const name = (product) => `Stable rank of the change${product} by initialisation scale`;
  const title = (product) => ["Stable rank of ", ...changeOf(product), " by initialisation scale"];
  const options = { name: `${name("")}, all heads`, title: "At the end, by initialisation scale" };
  put("glance-here", scalePlot(ofHeads, options).figure);
  const plots = PRODUCTS.map((product) =>
    scalePlot(ofLayers(product), { name: name(` of ${product}`), title: title(product), labelled: 8 }),
  );
  put("runs-here", pair(...plots));
}

/** The mean of what curves end with at each scale, of the runs of the chosen one's data. */
function scalePlot(linesOf, options) {
  return new Plot({
    ...options,
    xLabel: "initialisation scale",
    still: true,
    key: true,
    floor: 0,
    tip: (scale, line, y) => [line.name, `stable rank ${number(y, 3)} at scale ${number(scale, 2)}`],
    on: ["run"],
    content: () => {
      const { study } = here();
      const alike = runs.filter((run) => run.study === study && run.scale !== null && !run.empty);
      const scales = [...new Set(alike.map((run) => run.scale))].sort((a, b) => a - b);
      const lines = linesOf().map(({ curvesOf, ...look }) => {
        const endsAt = (scale) =>
          alike.filter((run) => run.scale === scale).flatMap((run) => curvesOf(run) ?? []).map((curve) => curve.at(-1));
        return { ...look, ...known(scales, scales.map((scale) => mean(endsAt(scale)))) };
      });
      const written = scales.map((scale) => number(scale)).join(", ");
      const summary = `${study}: mean over heads (and seeds) at the last measured step, scales ${written}.`;
      return scales.length < 2 ? { lines: [], summary: `${study} has one scale here.` } : { lines, summary };
    },
  });
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
    tip: (moment, line, y) => [line.name, `${line.rank} ${number(y, 3)}`, `${line.clock} ${number(moment, 3)}`],
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
        const style = one.noise ? "dashed" : ""; // a history may lie on the run that it is of
        return { name: one.name, shade: spread(index, found.length), style, rank: one.rankName, clock, xs, ys };
      });
      const greyed = found.flatMap((one) => one.noisy([product], state.layer, timesOf(one)));
      const ends = lines.map((line) => `${line.name} ${number(line.ys.at(-1), 3)}`).join(", ");
      const summary = `At the last step with ranks: ${ends}; mean over heads.${greyNote(greyed)}`;
      return { name, title, xLabel: clock, logX: state.logTime, lines, greyed, summary };
    },
  });
}
