// Runs of one network beside one another through training: seeds, scales, or a tracked run and the history of its checkpoints.

import { valueAt } from "../curves.js";
import { h, number } from "../dom.js";
import { changeOf, spread } from "../layout.js";
import { Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { here, mean } from "./runs.js";

/** With more runs, no line could be told from another. */
const MOST_BESIDE = 12;

export function beside(runs) {
  if (runs.length < 2) return;
  const holder = h("div", { class: "pair" });
  const plots = new Map(["KQ", "VO"].map((product) => [product, besidePlot(runs, product)]));
  watch(["run"], () => {
    const shown = alike(runs).length > 1 ? here().products : [];
    holder.replaceChildren(...shown.map((product) => plots.get(product).figure));
  });
  document.getElementById("runs-here").append(h("div", { class: "run" }, holder));
}

/** The runs with the chosen one's layers and heads, that one among them. */
function alike(runs) {
  const form = (run) => JSON.stringify([run.products, run.layers.map(({ name, heads }) => [name, heads])]);
  const found = runs.filter((run) => !run.empty && form(run) === form(here()));
  return found.length > MOST_BESIDE ? [] : found;
}

function besidePlot(runs, product) {
  const plot = new Plot({
    name: `Rank of the change of ${product}, runs with the same layers`,
    title: "",
    xLabel: "",
    logX: () => state.logTime,
    key: true,
    floor: 0,
    height: 290,
    tip: (moment, line) => line && [line.name, `${line.rank} ${number(valueAt(line, moment), 3)}`, `${line.clock} ${number(moment, 3)}`],
  });
  watch(["run", "rank", "layer", "logTime"], () => {
    const found = alike(runs);
    if (found.length < 2 || !here().products.includes(product)) return plot.show({ lines: [] });
    const where = state.layer < 0 ? "all heads" : here().layerName(state.layer);
    plot.rename(`${here().rankTitle} of the change of ${product}, runs with the same layers`, [
      `${here().rankTitle} of `,
      ...changeOf(product),
      `, ${where}, runs with the same layers`,
    ]);
    // Steps, unless every run knows its epochs.
    const epochs = found.every((run) => run.epoch_steps);
    plot.options.xLabel = epochs ? "epoch" : "step";
    const lines = found.map((run, index) => line(run, product, epochs, spread(index, found.length)));
    const greyed = found.flatMap((run) => run.noisy([product], state.layer).map((range) => range.map((time) => time * unit(run, epochs))));
    const others = runs.length - found.length;
    const apart = others ? ` Not shown: ${others} with other layers or heads, or without a measurement.` : "";
    plot.show({ lines, greyed, summary: `${summary(found, product)}${apart}${here().greyNote(greyed)}` });
  });
  return plot;
}

/** Mean over the heads that are looked at; of a history, dashed, since it may lie on the run that it is of. */
function line(run, product, epochs, shade) {
  const { xs, ys } = run.over(curves(run, product));
  const about = { rank: run.rankName, clock: epochs ? "epoch" : "step" };
  return { name: run.name, shade, style: run.noise ? "dashed" : "", ...about, xs: xs.map((time) => time * unit(run, epochs)), ys };
}

/** What turns a run’s own time into epochs or steps. */
function unit(run, epochs) {
  return epochs ? 1 : (run.epoch_steps ?? 1);
}

function curves(run, product) {
  return state.layer < 0 ? run.ranks[product].flat() : run.ranks[product][state.layer];
}

/** Where each ends; of two runs, how far apart they are at the steps that both have, but for noise. */
function summary(found, product) {
  const end = (run) => mean(curves(run, product).map((curve) => curve.at(-1)));
  const ends = found.map((run) => `${run.name} ${number(end(run), 3)}`).join(", ");
  const same = found.every((run) => run.steps.at(-1) === run.last);
  return `At ${same ? "the last step" : "the last step with ranks of each"}: ${ends}; mean over heads.${found.length === 2 ? apart(...found, product) : ""}`;
}

function apart(one, other, product) {
  const level = (run, step) => mean(curves(run, product).map((curve) => curve[run.steps.indexOf(step)]));
  const noisy = (run, step) => run.noisy([product], state.layer).some(([from, to]) => run.at(step) >= from && run.at(step) <= to);
  const shared = one.steps.filter((step) => step > 0 && other.steps.includes(step));
  const clear = shared.filter((step) => !noisy(one, step) && !noisy(other, step));
  if (!clear.length) return "";
  const distances = clear.map((step) => Math.abs(level(one, step) / level(other, step) - 1));
  const largest = distances.reduce((a, b) => Math.max(a, b));
  const but = clear.length < shared.length ? ` that are not grey, of ${shared.length} that the page has of both` : " that the page has of both";
  const when = `at step ${clear[distances.indexOf(largest)]}`;
  return ` At the ${clear.length} steps${but}, they differ by at most ${number(100 * largest, 2)} % (${when}).`;
}
