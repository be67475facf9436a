// Several runs: what they ended with, ranks by initialisation scale, and runs of one network beside one another.

import { highest, mean, spread } from "../data.js";
import { capitalised, changeOf, h, number, put, scrolling, table } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { choose, state } from "../state.js";
import { LOOKS } from "./ranks.js";
import { here, PRODUCTS } from "./run.js";

const MOST_BESIDE = 12; // with more lines, none could be told from another

/** A table of all runs, with a button to show each: `beginning(index)` is what that chooses. */
export function runList(runs, beginning) {
  const scores = ["accuracy", "perplexity"].filter((metric) => runs.some((run) => run.training[metric]));
  const rows = runs.map((run, index) => {
    const rank = (product) => number(mean((run.kinds.stable[product] ?? []).flat().map((curve) => curve.at(-1))), 3);
    const last = (metric) => number(run.training[metric]?.last, 3);
    const since = run.training.loss ? run.whenLast(run.training.loss) : "";
    const show = h("button", { type: "button", onclick: () => choose(beginning(index)) }, "show");
    const about = [run.name, run.study, number(run.scale), run.seed ?? "–", run.finished ? "yes" : "no", run.last];
    return [...about, ...PRODUCTS.map(rank), last("loss") + since, ...scores.map(last), show];
  });
  const head = ["run", "data", "scale", "seed", "finished", "last step", "rank of ΔKQ", "rank of ΔVO", "last loss"];
  const made = table("Stable ranks are means over all heads at the last step that has them", [...head, ...scores, ""], rows);
  document.getElementById("runs-here").append(scrolling("Runs", made));
  if (new Set(runs.map((run) => run.scale).filter((scale) => scale !== null)).size < 2) return;
  put("runs-here", pair(...PRODUCTS.map((product) => scalePlot(runs, layersByScale(product)))));
  put("glance-here", scalePlot(runs, headsByScale).figure);
}

/** Both products over all heads. */
const headsByScale = {
  name: "Stable rank of the change by initialisation scale, all heads",
  title: "At the end, by initialisation scale",
  linesOf: (alike) =>
    here().products.map((product) => {
      const line = byScale(alike, (run) => run.kinds.stable[product]?.flat());
      return { name: `change of ${product}`, style: LOOKS[product], ...line };
    }),
};

/** One product, a line for each layer. */
function layersByScale(product) {
  return {
    name: `Stable rank of the change of ${product} by initialisation scale`,
    title: ["Stable rank of ", ...changeOf(product), " by initialisation scale"],
    labelled: 8,
    linesOf: (alike) =>
      here().layers.map(({ title }, layer) => {
        const look = { label: `layer ${layer + 1}`, shade: spread(layer, here().layers.length), direct: true };
        return { name: title, ...look, ...byScale(alike, (run) => run.kinds.stable[product]?.[layer]) };
      }),
  };
}

/** The mean of what curves end with, over the runs of each scale. */
function byScale(runs, curvesOf) {
  const ends = new Map();
  for (const run of runs) {
    const found = (curvesOf(run) ?? []).map((curve) => curve.at(-1));
    ends.set(run.scale, [...(ends.get(run.scale) ?? []), ...found]);
  }
  const xs = [...ends.keys()].filter((scale) => ends.get(scale).length).sort((a, b) => a - b);
  return { xs, ys: xs.map((scale) => mean(ends.get(scale))) };
}

/** Stable rank at the end against the initialisation scale, of the chosen run's data. */
function scalePlot(runs, { linesOf, ...options }) {
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
      if (scales.length < 2) return { lines: [], summary: `${study} has one scale here.` };
      const written = scales.map((scale) => number(scale)).join(", ");
      const summary = `${study}: mean over heads (and seeds) at the last measured step, scales ${written}.`;
      return { lines: linesOf(alike).filter(({ xs }) => xs.length), summary };
    },
  });
}

/** Through training, the runs that have the chosen one's layers and heads: seeds, scales, a run and its history. */
export function beside(runs) {
  if (runs.length > 1) put("runs-here", pair(...PRODUCTS.map((product) => besidePlot(runs, product))));
}

function besidePlot(runs, product) {
  return new Plot({
    key: true,
    floor: 0,
    height: 290,
    tip: (moment, line, y) => [line.name, `${line.rank} ${number(y, 3)}`, `${line.clock} ${number(moment, 3)}`],
    on: ["run", "rank", "layer", "logTime"],
    content: () => {
      const run = here();
      const found = alike(runs);
      if (found.length < 2 || !run.products.includes(product)) return null;
      const rank = capitalised(run.rankName);
      const where = state.layer < 0 ? "all heads" : run.layerName(state.layer);
      const name = `${rank} of the change of ${product}, runs with the same layers`;
      const title = [`${rank} of `, ...changeOf(product), `, ${where}, runs with the same layers`];
      const clock = found.every((one) => one.epoch_steps) ? "epoch" : "step"; // epochs if every run knows them
      const unit = (one) => (clock === "epoch" ? 1 : (one.epoch_steps ?? 1));
      const lines = found.map((one, index) => {
        const { xs, ys } = one.over(curvesOf(one, product));
        const style = one.noise ? "dashed" : ""; // a history may lie on the run that it is of
        const look = { name: one.name, shade: spread(index, found.length), style, rank: one.rankName, clock };
        return { ...look, xs: xs.map((time) => time * unit(one)), ys };
      });
      const greyed = found.flatMap((one) =>
        one.noisy([product], state.layer).map((range) => range.map((time) => time * unit(one))),
      );
      const others = runs.length - found.length;
      const missing = others ? ` Not shown: ${others} with other layers or heads, or without a measurement.` : "";
      const summary = `${besideSummary(found, product)}${missing}${run.greyNote(greyed)}`;
      return { name, title, xLabel: clock, logX: state.logTime, lines, greyed, summary };
    },
  });
}

/** The runs with the chosen one's layers and heads, that one among them. */
function alike(runs) {
  const form = ({ products, layers }) => JSON.stringify([products, layers.map(({ name, heads }) => [name, heads])]);
  const found = runs.filter((run) => !run.empty && form(run) === form(here()));
  return found.length > MOST_BESIDE ? [] : found;
}

/** Of all heads, or of those of the chosen layer. */
function curvesOf(run, product) {
  return state.layer < 0 ? run.ranks[product].flat() : run.ranks[product][state.layer];
}

function besideSummary(found, product) {
  const end = (run) => number(mean(curvesOf(run, product).map((curve) => curve.at(-1))), 3);
  const ends = found.map((run) => `${run.name} ${end(run)}`).join(", ");
  const whole = found.every((run) => run.steps.at(-1) === run.last);
  const when = whole ? "the last step" : "the last step with ranks of each";
  return `At ${when}: ${ends}; mean over heads.${found.length === 2 ? distance(...found, product) : ""}`;
}

/** How far apart two runs are at the steps that both have, but for noise. */
function distance(one, other, product) {
  const level = (run, step) => mean(curvesOf(run, product).map((curve) => curve[run.steps.indexOf(step)]));
  const isNoisy = (run, step) =>
    run.noisy([product], state.layer).some(([from, to]) => run.at(step) >= from && run.at(step) <= to);
  const shared = one.steps.filter((step) => step > 0 && other.steps.includes(step));
  const clear = shared.filter((step) => !isNoisy(one, step) && !isNoisy(other, step));
  if (!clear.length) return "";
  const distances = clear.map((step) => Math.abs(level(one, step) / level(other, step) - 1));
  const largest = highest(distances);
  const grey = clear.length < shared.length ? ` that are not grey, of ${shared.length}` : "";
  const when = `at step ${clear[distances.indexOf(largest)]}`;
  const most = `${number(100 * largest, 2)} % (${when})`;
  return ` At the ${clear.length} steps${grey} that the page has of both, they differ by at most ${most}.`;
}
