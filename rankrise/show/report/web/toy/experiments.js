// The other experiments: smaller initialisations, gradient descent, full weights, perturbations.

import { state, watch, Zoom } from "../controls.js";
import { highest, known, spread } from "../data.js";
import { absent, fixed, h, number, percent, plural, power, productName } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { plotOfTime, runs, sideBySide } from "./run.js";
import { plotOfWays } from "./stages.js";

/** The finding in one picture: how many coordinates are active when. */
export function glance() {
  const shown = { title: "Rank: active coordinates over time", height: runs.length > 1 ? 170 : 250 };
  const name = (run) => `Active coordinates of ${run.name}, at a glance`;
  sideBySide("glance-here", (run) => plotOfWays(run, "count", false, { name: name(run), ...shown }).figure);
}

/** Gradient descent against the flow, at the chosen α. */
export function descent() {
  sideBySide("descent-here", (run) => {
    const losses = { name: `Loss by flow and by descent, ${run.name}`, title: "Loss" };
    const counts = { name: `Active coordinates of ${run.name}`, title: "Active coordinates" };
    return pair(plotOfWays(run, "loss", true, losses), plotOfWays(run, "count", true, counts));
  });
}

/** Every α at once: the loss, and how far each stage is from its time by Algorithm 1. */
export function convergence() {
  sideBySide("convergence-here", (run) => {
    const losses = plotOfTime({
      name: `Loss at every α of ${run.name}`,
      title: "Loss at every α",
      key: true,
      tip: (time, line, y) => [line.name, `loss ${number(y)} at ${number(time)}`],
      on: ["seed", "logLoss"],
      content: () => {
        const { flows = [], rules = [] } = run.seed ?? {};
        const lines = run.seed ? [{ ...run.seed.theory("loss"), name: "Algorithm 1, the limit" }] : [];
        const shade = (index) => spread(index, flows.length);
        lines.push(...flows.map((flow, index) => ({ name: flow.scale, shade: shade(index), ...flow.loss })));
        const summary = "The smaller α is, the sharper the steps and the closer they come to the dashed limit.";
        return { lines, rules, logY: state.logLoss, summary };
      },
    });
    const errors = new Plot({
      name: `Error of stage times against Algorithm 1, ${run.name}`,
      title: "Error of stage times, |t − T| / T",
      xLabel: "log₁₀(1/α)",
      logX: true,
      logY: true,
      tip: (x, line, y) => [line.name, `${percent(y)} at α = ${power(-Math.round(x))}`],
      on: ["seed"],
      content: () => timeErrors(run.seed),
    });
    return pair(losses, errors);
  });
}

function timeErrors(seed) {
  const flows = seed?.flows ?? [];
  if (flows.length < 2) return { lines: [], summary: "This needs Algorithm 1 and flows at two or more α." };
  const xs = flows.map((flow) => -flow.log10_alpha);
  const lines = seed.stages.map(({ coordinate, time }, index) => {
    const errors = flows.map((flow) => Math.abs(flow.activeNear(coordinate, time) - time) / time);
    const name = `stage ${index + 1}, ${seed.labels[coordinate]}`;
    return { name, shade: seed.shade(coordinate), ...known(xs, errors) };
  });
  const worst = highest([0, ...lines.map(({ ys }) => ys.at(-1) ?? 0)]);
  return { lines, summary: `Each line is a stage. At ${flows.at(-1).scale} the largest error is ${percent(worst)}.` };
}

/** Weights that are full matrices: singular values, one after another. */
export function fullWeights() {
  sideBySide("full-here", (run) => {
    const zoom = new Zoom();
    const note = absent("This run has no experiment with full weights.");
    watch(["seed"], () => (note.hidden = Boolean(run.seed?.full)));
    const plots = ["Loss", "KQ", "VO"].map((what) => fullPlot(run, zoom, what));
    return h("div", {}, note, h("div", { class: "triple" }, plots.map((plot) => plot.figure)));
  });
}

function fullPlot(run, zoom, what) {
  const ofLoss = what === "Loss";
  return new Plot({
    name: `${ofLoss ? "Loss" : `Singular values of ${what}`}, full weights of ${run.name}`,
    title: ofLoss ? "Loss" : ["Singular values of ", ...productName(what)],
    labelled: 3,
    xLabel: "training time (steps × step size)",
    zoom,
    floor: 0,
    tip: (time, line, y) => [`${line.name} ${number(y)}`, `at time ${number(time)}`],
    on: ["seed"],
    content: () => {
      const full = run.seed?.full;
      if (!full) return null;
      const loss = { name: "loss", style: "main", ...known(...full.loss) };
      zoom.full = [loss.xs[0], loss.xs.at(-1)];
      const course = `From ${number(loss.ys[0])} to ${number(loss.ys.at(-1))}`;
      const summary = `${course}; initial weights of size ${full.scale}, step ${full.step}.`;
      return ofLoss ? { lines: [loss], summary } : fullValues(full, what);
    },
  });
}

/** Singular values are listed head after head, each head's from the largest to the smallest. */
function fullValues({ curves, dimension, predicted }, what) {
  const lines = curves[what].map((curve, index) => {
    const label = `σ${(index % dimension) + 1}`;
    const head = curves[what].length > dimension ? `head ${Math.floor(index / dimension) + 1}, ` : "";
    const look = { label, shade: spread(index % dimension, dimension), direct: true };
    return { name: head + label, ...look, ...known(...curve) };
  });
  const rules = predicted[what].map((at, index) => ({ at, label: `${index + 1}` }));
  const marked = rules.length ? " Vertical lines: when each rank is predicted." : "";
  return { lines, rules, summary: `At the end the largest is ${number(lines[0].ys.at(-1))}.${marked}` };
}

/** Strict minima and noise robustness: how far a perturbed run is from the run itself. */
export function perturbations() {
  const titles = { "strict-minima": "Strict minima", "noise-robustness": "Noise robustness" };
  sideBySide("perturbations-here", (run) => {
    const note = absent("This run has no perturbation experiments.");
    watch(["seed"], () => (note.hidden = Object.keys(run.seed?.perturbations ?? {}).length > 0));
    return h("div", {}, note, pair(...Object.entries(titles).map((entry) => distancePlot(run, ...entry))));
  });
}

function distancePlot(run, kind, title) {
  return new Plot({
    xLabel: "rescaled time since the perturbation",
    name: `${title} of ${run.name}: distance from the run itself`,
    title: `${title}: largest |perturbed − unperturbed|`,
    logY: true,
    floor: 1e-6,
    tip: (time, line, y) => [line.name, `${number(y, 3)} after ${number(time, 3)}`],
    on: ["seed"],
    content: () => {
      const { std, experiments } = run.seed?.perturbations[kind] ?? {};
      if (!experiments) return null;
      const lines = experiments.map(({ start, distance }, index) => {
        const look = { label: fixed(start, 2), shade: spread(index, experiments.length), direct: true };
        return { name: `perturbed at ${number(start)}`, ...look, ...known(...distance) };
      });
      const worst = highest([0, ...lines.map((line) => line.ys.at(-1))]);
      const noise = `Noise of std ${std}, ${plural(experiments.length, "experiment")}`;
      return { lines, summary: `${noise}; at the end the farthest is ${number(worst, 2)} away.` };
    },
  });
}
