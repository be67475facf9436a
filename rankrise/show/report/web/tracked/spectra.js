// Singular values: of the product at the beginning, and of its change at steps of training.

import { valueAt } from "../curves.js";
import { h, number, plural } from "../dom.js";
import { absent, changeOf, spread } from "../layout.js";
import { Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { here, mean } from "./runs.js";

const MOST_KEYED = 12;

export function spectra() {
  const holder = h("div", { class: "pair" });
  const plots = new Map(["KQ", "VO"].map((product) => [product, spectrumPlot(product)]));
  const matrices = matrixSpectra();
  watch(["run"], () => {
    const ofHeads = here().spectra.steps.length ? here().products.map((product) => plots.get(product).figure) : [];
    const found = [...ofHeads, ...(here().matrix_spectra.steps.length ? [matrices.figure] : [])];
    holder.replaceChildren(...(found.length ? found : [absent(`This run has no full spectra${here().finished ? "" : " yet"}.`)]));
  });
  document.getElementById("spectra-here").append(h("div", { class: "run" }, holder));
}

const spectrumAxes = {
  xLabel: "index of the singular value",
  xLabelShort: "index",
  logY: () => state.logValues,
  key: true,
  floor: 0,
  height: 290,
  tip: (index, line) => line && [line.name, `value ${Math.round(index)}: ${number(valueAt(line, index), 3)}`],
};

/** The change of every matrix that belongs to no head, a line each, at the step nearest to the chosen one. */
function matrixSpectra() {
  const plot = new Plot({ ...spectrumAxes, name: "Spectra of other matrices", title: "Singular values of the change of other matrices" });
  watch(["run", "place", "normalised", "logValues"], () => {
    const run = here();
    const { steps, indices, change } = run.matrix_spectra;
    if (!steps.length) return plot.show({ lines: [] });
    plot.options.floor = state.logValues ? undefined : 0;
    const chosen = nearestSpectrum(run, steps);
    const drawn = run.matrices.map(({ name }, place) => ({ name, xs: indices[place], ys: scaled(change[place][chosen]) })).filter(({ ys }) => ys.length);
    const lines = drawn.map((line, index) => ({ ...line, shade: spread(index, drawn.length), unkeyed: drawn.length > MOST_KEYED }));
    const missing = run.matrices.length - lines.length;
    const but = missing ? `; ${plural(missing, "large matrix has", "large matrices have")} none there` : "";
    const over = state.normalised ? "; each spectrum over its largest value" : "";
    plot.show({ lines, summary: `${plural(lines.length, "matrix", "matrices")} at ${run.moment(steps[chosen])}${but}${over}.` });
  });
  return plot;
}

function spectrumPlot(product) {
  const plot = new Plot({ ...spectrumAxes, name: `Spectra of ${product}`, title: ["Singular values of ", ...changeOf(product)] });
  watch(["run", "layer", "head", "place", "normalised", "logValues"], () => {
    const run = here();
    if (!run.spectra.steps.length || !run.products.includes(product)) return plot.show({ lines: [] });
    plot.options.floor = state.logValues ? undefined : 0;
    plot.show(spectrumContent(run, product));
  });
  return plot;
}

function spectrumContent(run, product) {
  const { steps, indices, initial, change } = run.spectra;
  const chosen = nearestSpectrum(run, steps);
  const layers = state.layer < 0 ? run.layers.map((_, layer) => layer) : [state.layer];
  const line = (record, more) => {
    const curves = layers.flatMap((layer) => spectrumHeads(run, record[layer]));
    const shared = curves.reduce((least, curve) => Math.min(least, curve.length), Infinity);
    const ys = Array.from({ length: shared }, (_, index) => mean(curves.map((curve) => curve[index])));
    return { xs: indices.slice(0, shared), ys, ...more };
  };
  const lines = steps.map((step, index) =>
    line(change[product][index], {
      name: `change at ${run.moment(step)}`,
      unkeyed: index !== chosen,
      style: `green-${greenOf(index, steps.length)}${index === chosen ? " now" : " faint"}`,
    }),
  );
  lines.push(line(initial[product], { name: atFirst(run), style: "initial" }));
  const above = (record) => number(mean(layers.flatMap((layer) => chosenHeads(run, record[layer]))), 3);
  const { initial_above, change_above } = run.spectra;
  const whose = state.layer < 0 ? "All layers" : run.layerName(state.layer);
  const which = run.spectra.merged || state.layer < 0 || state.head < 0 ? "mean over heads" : run.headName(state.layer, state.head);
  const count = above(change_above[product][chosen]);
  const ofChange = `${count} ${count === "1" ? "value" : "values"} of the change at ${run.moment(steps[chosen])}`;
  const counted = `Above a tenth of a head’s largest: ${ofChange}, ${above(initial_above[product])} of the ${atFirst(run)}.`;
  const whom = run.headCount === 1 ? run.onlyHead : `${whose}, ${which}`;
  return { lines, summary: `${whom}${state.normalised ? "; each spectrum over its largest value" : ""}. ${counted}` };
}

/** The product of the beginning, in words: a history may begin at any checkpoint. */
function atFirst(run) {
  return run.since === null ? "initial product" : "product at first";
}

/** What a layer's record has of its heads, or of the chosen one. */
function chosenHeads(run, heads) {
  return !run.spectra.merged && state.layer >= 0 && state.head >= 0 ? [heads[state.head]] : heads;
}

/** Their spectra, over their largest value where asked for. */
function spectrumHeads(run, heads) {
  return chosenHeads(run, heads).map(scaled);
}

function scaled(curve) {
  return state.normalised ? curve.map((value) => (curve[0] > 0 ? value / curve[0] : 0)) : curve;
}

/** The place of the full spectrum nearest to the chosen step, on a logarithmic clock. */
function nearestSpectrum(run, steps) {
  const step = run.steps[state.place] ?? 1;
  const away = steps.map((one) => Math.abs(Math.log(one / step)));
  return away.indexOf(away.reduce((a, b) => Math.min(a, b), Infinity));
}

function greenOf(index, count) {
  return count < 2 ? 5 : Math.round((5 * index) / (count - 1));
}
