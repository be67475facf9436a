// Several runs: what they ended with, and runs of one network beside one another.

import { state } from "../controls.js";
import { mean, spread } from "../data.js";
import { capitalised, changeOf, h, number, put, scrolling, table } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { greyNote, here, PRODUCTS, runs, showRun } from "./run.js";

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
