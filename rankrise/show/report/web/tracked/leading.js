// Leading singular values of the change through training: where a stage adds a direction, another value rises.

import { valueAt } from "../curves.js";
import { h, number, plural } from "../dom.js";
import { changeOf, spread } from "../layout.js";
import { Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { follow, timePlot } from "./clock.js";
import { here, mean } from "./runs.js";

const NOTE =
  "The leading singular values of the change, on a logarithmic axis. Where a head learns one direction after another, " +
  "as in theory, one value after another rises to the size of the largest.";
/** What is shown, as a fraction of the largest value. */
const FLOOR = 1e-6;

/** A plot for each product, below the spectra. */
export function leading() {
  const holder = h("div", { class: "pair" });
  const plots = new Map(["KQ", "VO"].map((product) => [product, leadingPlot(product)]));
  const block = h("div", { class: "run", id: "leading" }, h("h3", {}, "Singular values through training"), h("p", {}, NOTE), holder);
  watch(["run"], () => {
    block.hidden = here().leading.steps.length < 2 || !here().products.length;
    holder.replaceChildren(...here().products.map((product) => plots.get(product).figure));
  });
  document.getElementById("spectra-here").append(block);
}

function leadingPlot(product) {
  const plot = new Plot({
    ...timePlot,
    name: `Singular values of the change of ${product} through training`,
    title: ["Singular values of ", ...changeOf(product), " through training"],
    xLabel: "",
    logY: () => true,
    height: 290,
    tip: (moment, line) => line && [line.name, number(valueAt(line, moment), 3), `${here().clock} ${number(moment, 3)}`],
  });
  watch(["run", "layer", "head", "logTime"], () => {
    const run = here();
    plot.options.xLabel = run.clock;
    if (run.leading.steps.length < 2 || !run.products.includes(product)) return plot.show({ lines: [] });
    const curves = leadingLines(run, product);
    const floor = FLOOR * curves.flatMap(({ ys }) => ys).reduce((a, b) => Math.max(a, b), 0);
    plot.options.floor = floor || undefined;
    const lines = curves.map((line) => ({ ...line, direct: line.ys[line.ys.length - 1] > floor }));
    const greyed = run.noisy([product], state.layer);
    const told = `${whose(run)}: the ${plural(lines.length, "largest value", "largest values")}`;
    const cut = lines.some(({ ys }) => ys.some((value) => value < floor)) ? ", from a millionth of the largest on" : "";
    plot.show({ lines, rules: run.rules, greyed, summary: `${told}${cut}.${run.ruleNote}${run.greyNote(greyed)}` });
  });
  follow(plot);
  return plot;
}

/** A line for each index: of the chosen head, or the mean over heads. */
function leadingLines(run, product) {
  const { steps, values } = run.leading;
  const layers = state.layer < 0 ? values[product] : [values[product][state.layer]];
  const heads = oneHead(run) ? [layers[0][state.head]] : layers.flat();
  const count = heads.reduce((most, head) => Math.max(most, head.length), 0);
  const times = steps.map((step) => run.at(step));
  return Array.from({ length: count }, (_, index) => {
    const curves = heads.map((head) => head[index]).filter((curve) => curve);
    const places = steps.map((_, place) => place).filter((place) => curves.some((curve) => curve[place] !== null));
    return {
      name: `singular value ${index + 1}`,
      label: String(index + 1),
      shade: spread(index, count),
      xs: places.map((place) => times[place]),
      ys: places.map((place) => mean(curves.map((curve) => curve[place]))),
    };
  }).filter((line) => line.xs.length);
}

function oneHead(run) {
  return !run.leading.merged && state.layer >= 0 && state.head >= 0;
}

/** Whose values these are, in words. */
function whose(run) {
  if (run.headCount === 1) return run.onlyHead;
  const layer = state.layer < 0 ? "All layers" : run.layerName(state.layer);
  return `${layer}, ${oneHead(run) ? run.headName(state.layer, state.head) : "mean over heads"}`;
}
