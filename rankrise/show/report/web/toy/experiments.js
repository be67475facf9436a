// The other experiments: smaller initialisations, gradient descent, full weights, perturbations.

import { highest, known, spread } from "../data.js";
import { absent, fixed, h, number, percent, plural, power, productName, scaleText, sideBySide, signed } from "../dom.js";
import { pair, Plot } from "../plot.js";
import { state, watch, Zoom } from "../state.js";
import { plotOfTime } from "./plots.js";
import { theoryLine } from "./stages.js";

/** Every α at once: the loss, and how far each stage is from its time by Algorithm 1. */
export function convergence(runs) {
  sideBySide("convergence-here", runs, (run) => {
    const losses = plotOfTime({
      name: `Loss at every α of ${run.name}`,
      title: "Loss at every α",
      key: true,
      tip: (time, line, y) => [line.name, `loss ${number(y)} at ${number(time)}`],
      on: ["seed", "logLoss"],
      content: () => everyLoss(run),
    });
    const errors = new Plot({
      name: `Error of stage times against Algorithm 1, ${run.name}`,
      title: "Error of stage times, |t − T| / T",
      xLabel: "log₁₀(1/α)",
      still: true,
      logY: true,
      tip: (x, line, y) => [line.name, `${percent(y)} at α = ${power(-Math.round(x))}`],
      on: ["seed"],
      content: () => timeErrors(run.seed),
    });
    return pair(losses, errors);
  });
}

/** Flows from the largest α to the smallest. */
function flowsOf(seed) {
  return [...(seed?.flows.values() ?? [])].sort((a, b) => b.log10_alpha - a.log10_alpha);
}

function everyLoss({ seed }) {
  const flows = flowsOf(seed);
  const lines = flows.map((flow, index) => ({
    name: `α = ${scaleText(flow.log10_alpha)}`,
    shade: spread(index, flows.length),
    ...flow.loss,
  }));
  if (seed) lines.unshift({ ...theoryLine(seed.staircase, "loss"), name: "Algorithm 1, the limit" });
  const summary = "The smaller α is, the sharper the steps and the closer they come to the dashed limit.";
  return { lines, rules: seed?.rules ?? [], logY: state.logLoss, summary: flows.length > 1 ? summary : "" };
}

function timeErrors(seed) {
  const flows = flowsOf(seed);
  if (flows.length < 2) return { lines: [], summary: "This needs Algorithm 1 and flows at two or more α." };
  const xs = flows.map((flow) => -flow.log10_alpha);
  const errorOf = (flow, { coordinate, time }) => {
    const since = flow.activeNear(coordinate, time);
    return since === null ? NaN : Math.abs(since - time) / time;
  };
  const errors = seed.stages.map((stage) => flows.map((flow) => errorOf(flow, stage)));
  const lines = seed.stages.map(({ coordinate }, index) => ({
    name: `stage ${index + 1}, ${seed.labels[coordinate]}`,
    shade: seed.staircase.shade(coordinate),
    style: "thin",
    ...known(xs, errors[index]),
  }));
  const typical = known(xs, xs.map((_, at) => median(errors.map((ofStage) => ofStage[at]))));
  lines.push({ name: "median over the stages", label: "median", style: "main", direct: true, ...typical });
  const end = (at) => `${percent(typical.ys.at(at))} at α = ${scaleText(flows.at(at).log10_alpha)}`;
  const colours = "Each thin line is a stage, in the colour of its coordinate.";
  const course = `The median over the stages goes from ${end(0)} to ${end(-1)}`;
  return { lines, summary: `${colours} ${course}; stages the flow does not reach are left out.` };
}

function median(values) {
  const sorted = values.filter((value) => !Number.isNaN(value)).sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The finding in one picture: how many coordinates are active when. */
export function glance(runs) {
  sideBySide("glance-here", runs, (run) => {
    const plot = plotOfTime({
      name: `Active coordinates of ${run.name}, at a glance`,
      title: "Rank: active coordinates over time",
      key: true,
      floor: 0,
      height: runs.length > 1 ? 170 : 250,
      tip: (time, line, y) => [line.name, `${plural(y, "coordinate")} active at ${number(time)}`],
      on: ["alpha", "seed"],
      content: () => threeWays(run.seed, "count", false),
    });
    return plot.figure;
  });
}

/** Gradient descent against the flow, at the chosen α. */
export function descent(runs) {
  sideBySide("descent-here", runs, (run) => {
    const tip = (what) => (time, line, y) => [line.name, `${what} ${number(y)} at ${number(time)}`];
    const losses = plotOfTime({
      name: `Loss by flow and by descent, ${run.name}`,
      title: "Loss",
      key: true,
      tip: tip("loss"),
      on: ["alpha", "seed", "logLoss"],
      content: () => ({ ...threeWays(run.seed, "loss"), logY: state.logLoss }),
    });
    const counts = plotOfTime({
      name: `Active coordinates of ${run.name}`,
      title: "Active coordinates",
      key: true,
      floor: 0,
      tip: tip("active:"),
      on: ["alpha", "seed"],
      content: () => threeWays(run.seed, "count"),
    });
    return pair(losses, counts);
  });
}

/** Algorithm 1, the flow and, if asked for, gradient descents: the "loss" or the "count" of active coordinates. */
function threeWays(seed, what, withDescents = true) {
  if (!seed) return { lines: [], summary: "Not computed yet." };
  const { staircase, flow, rules } = seed;
  const lines = [theoryLine(staircase, what)];
  if (flow) lines.push({ name: `flow, α = ${scaleText(state.alpha)}`, style: "main", ...flow[what] });
  const descents = withDescents ? seed.descentsHere : [];
  descents.forEach((path, index) => {
    lines.push({ name: `descent, step ${number(path.step)}`, style: `second-${index}`, ...path[what] });
  });
  const ends = lines.map((line) => `${number(line.ys.at(-1))} (${line.name})`).join(", ");
  const missing = withDescents && !descents.length;
  const none = missing ? `This run has no gradient descent at α = ${scaleText(state.alpha)}. ` : "";
  const messages = [...new Set(descents.map((path) => path.message))].join(" ");
  return { lines, rules, summary: `${none}At the end: ${ends}. ${messages}` };
}

/** Weights that are full matrices: singular values, one after another. */
export function fullWeights(runs) {
  sideBySide("full-here", runs, (run) => {
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
    xLabelShort: "training time",
    someLabels: true,
    zoom,
    floor: 0,
    tip: (time, line, y) => [`${line.name} ${number(y)}`, `at time ${number(time)}`],
    on: ["seed"],
    content: () => {
      const full = run.seed?.full;
      if (!full) return null;
      zoom.full = [full.loss[0][0], full.loss[0].at(-1)];
      return ofLoss ? fullLoss(full) : fullValues(full, what);
    },
  });
}

function fullLoss({ loss, scale, step, message }) {
  const line = { name: "loss", style: "main", ...known(...loss) };
  const course = `From ${number(line.ys[0])} to ${number(line.ys.at(-1))}`;
  return { lines: [line], summary: `${course}; initial weights of size ${scale}, step ${step}. ${message}` };
}

/** Singular values are listed head after head, each head's from the largest to the smallest. */
function fullValues({ curves, dimension, predicted }, what) {
  const lines = curves[what].map((curve, index) => {
    const place = index % dimension;
    const label = `σ${place + 1}`;
    const head = curves[what].length > dimension ? `head ${Math.floor(index / dimension) + 1}, ` : "";
    return { name: head + label, label, shade: spread(place, dimension), direct: true, ...known(...curve) };
  });
  const [largest, ...others] = lines.map((line) => line.ys.at(-1));
  const large = [largest, ...others].filter((value) => value > 0.05 * largest).length;
  const rules = predicted[what].map((at, index) => ({ at, label: `${index + 1}` }));
  const marked = rules.length ? " Vertical lines: when each rank is predicted." : "";
  const above = `above 5 % of the largest, ${number(largest)}`;
  return { lines, rules, summary: `At the end ${large} of ${lines.length} are ${above}.${marked}` };
}

/** Strict minima and noise robustness: a perturbed run beside the run itself. */
export function perturbations(runs) {
  const titles = { "strict-minima": "Strict minima", "noise-robustness": "Noise robustness" };
  sideBySide("perturbations-here", runs, (run) => {
    const holder = h("div", { class: "pair" });
    watch(["seed"], () => {
      const found = Object.entries(run.seed?.perturbations ?? {});
      const parts = found.map(([kind, record]) => perturbation(run, titles[kind], record));
      holder.replaceChildren(...(parts.length ? parts : [absent("This run has no perturbation experiments.")]));
    });
    return holder;
  });
}

const SINCE = { xLabel: "rescaled time since the perturbation", xLabelShort: "time since" };

function perturbation(run, title, { std, threshold, experiments }) {
  const { seed } = run;
  const distances = new Plot({
    ...SINCE,
    name: `${title} of ${run.name}: distance from the run itself`,
    title: `${title}: largest |perturbed − unperturbed|`,
    logY: true,
    floor: 1e-6,
    tip: (time, line, y) => [line.name, `${number(y, 3)} after ${number(time, 3)}`],
    content: () => {
      const lines = experiments.map(({ start, distance }, index) => ({
        name: `perturbed at ${number(start)}`,
        label: fixed(start, 2),
        shade: spread(index, experiments.length),
        direct: true,
        ...known(...distance),
      }));
      const worst = highest([0, ...lines.map((line) => line.ys.at(-1))]);
      const noise = `Noise of std ${std} on weights above ${threshold}, ${plural(experiments.length, "experiment")}`;
      return { lines, summary: `${noise}; at the end the farthest is ${number(worst, 2)} away.` };
    },
  });

  const shown = experiments.filter((experiment) => experiment.original);
  const options = shown.map(({ start }, index) => h("option", { value: index }, `at ${number(start)}`));
  const select = h("select", { onchange: () => detail.refresh() }, options);
  const detail = new Plot({
    ...SINCE,
    name: `${title} of ${run.name}: entries`,
    title: "Entries, dashed where perturbed",
    tip: (time, line, y) => [seed.describe(line.coordinate), `${line.name} ${signed(y)}`],
    content: () => {
      const { original, perturbed } = shown[select.value];
      const lines = Object.keys(original).flatMap((key) => {
        const shared = { coordinate: Number(key), shade: seed.staircase.shade(Number(key)), label: seed.short[key] };
        return [
          { ...shared, name: "itself", direct: true, ...known(...original[key]) },
          { ...shared, name: "perturbed", style: "dashed", ...known(...perturbed[key]) },
        ];
      });
      return { lines, summary: `${plural(lines.length / 2, "coordinate")} above the threshold.` };
    },
  });
  return h("div", { class: "perturbation" }, distances.figure, h("label", {}, "Perturbed ", select), detail.figure);
}
