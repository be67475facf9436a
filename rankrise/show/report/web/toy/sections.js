// The other experiments: smaller initialisations, gradient descent, full weights, perturbations.

import { unpack, valueAt } from "../curves.js";
import { fixed, h, number, percent, plural, power, scaleText, signed } from "../dom.js";
import { absent, fullProduct, sideBySide, spread } from "../layout.js";
import { Plot } from "../plot.js";
import { state, watch, Zoom } from "../state.js";
import { timePlot } from "./clock.js";

/** Every α at once: the loss, and how far each stage is from its T. */
export function convergence(runs) {
  sideBySide("convergence-here", runs, (run) => {
    const losses = new Plot({
      ...timePlot,
      name: `Loss at every α of ${run.name}`,
      title: "Loss at every α",
      key: true,
      logY: () => state.logLoss,
      tip: (time, line) => line && [line.name, `loss ${number(valueAt(line, time))} at ${number(time)}`],
    });
    const errors = new Plot({
      name: `Error of stage times against Algorithm 1, ${run.name}`,
      title: "Error of stage times, |t − T| / T",
      xLabel: "log₁₀(1/α)",
      logX: () => true,
      padX: true,
      still: true,
      logY: () => true,
      tip: (x, line) => line && [line.name, `${percent(valueAt(line, x))} at α = ${power(-Math.round(x))}`],
    });
    watch(["seed", "logLoss"], () => losses.show(everyLoss(run)));
    watch(["seed"], () => errors.show(timeErrors(run)));
    watch(["time"], () => losses.setCursor(state.time));
    return h("div", { class: "pair" }, losses.figure, errors.figure);
  });
}

function everyLoss(run) {
  const { seed } = run;
  const flows = [...(seed?.flows.values() ?? [])].sort((a, b) => b.log10Alpha - a.log10Alpha);
  const lines = flows.map((flow, index) => ({
    name: `α = ${scaleText(flow.log10Alpha)}`,
    shade: spread(index, flows.length),
    ...flow.loss,
  }));
  const { staircase } = seed ?? {};
  if (staircase) {
    lines.unshift({ name: "Algorithm 1, the limit", style: "theory", ...staircase.curve((k) => staircase.lossAfter(k)) });
  }
  const summary = flows.length > 1 ? "The smaller α is, the sharper the steps and the closer they come to the dashed limit." : "";
  return { lines, rules: seed?.rules ?? [], summary };
}

function timeErrors(run) {
  const { seed } = run;
  const flows = [...(seed?.flows.values() ?? [])].sort((a, b) => b.log10Alpha - a.log10Alpha);
  if (flows.length < 2) return { lines: [], summary: "This needs Algorithm 1 and flows at two or more α." };
  const xs = flows.map((flow) => -flow.log10Alpha);
  const { stages } = seed.staircase;
  const rows = stages.map(({ coordinate, time }) =>
    flows.map((flow) => {
      const since = flow.activeNear(coordinate, time);
      return since === null ? null : Math.abs(since - time) / time;
    }),
  );
  const lines = stages.map(({ coordinate }, index) => ({
    name: `stage ${index + 1}, ${seed.labels[coordinate]}`,
    shade: seed.shade(coordinate),
    style: "thin",
    ...known(xs, rows[index]),
  }));
  const typical = known(xs, flows.map((_, place) => median(rows.map((row) => row[place]).filter((value) => value !== null))));
  lines.push({ name: "median over the stages", label: "median", style: "main", direct: true, ...typical });
  const first = typical.ys[0];
  const last = typical.ys[typical.ys.length - 1];
  const [from, to] = [flows[0], flows[flows.length - 1]].map((flow) => scaleText(flow.log10Alpha));
  const course = `The median over the stages goes from ${percent(first)} at α = ${from} to ${percent(last)} at α = ${to}`;
  const thin = "Each thin line is a stage, in the colour of its coordinate.";
  const summary = `${thin} ${course}; stages the flow does not reach are left out.`;
  return { lines, summary };
}

function known(xs, values) {
  const kept = values.map((value, index) => [xs[index], value]).filter(([, value]) => value !== null && !Number.isNaN(value));
  return { xs: kept.map(([x]) => x), ys: kept.map(([, value]) => value) };
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  if (!sorted.length) return null;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** The finding in one picture: how many coordinates are active when. */
export function rank(runs) {
  sideBySide("glance-here", runs, (run) => {
    const plot = new Plot({
      ...timePlot,
      name: `Active coordinates of ${run.name}, at a glance`,
      title: "Rank: active coordinates over time",
      key: true,
      floor: 0,
      height: runs.length > 1 ? 170 : 250,
      tip: (time, line) => line && [line.name, `${plural(valueAt(line, time), "coordinate")} active at ${number(time)}`],
    });
    watch(["alpha", "seed"], () => plot.show(threeWays(run, "count", false)));
    watch(["time"], () => plot.setCursor(state.time));
    return plot.figure;
  });
}

/** Gradient descent against the flow, at the chosen α. */
export function descent(runs) {
  sideBySide("descent-here", runs, (run) => {
    const tip = (what) => (time, line) => line && [line.name, `${what} ${number(valueAt(line, time))} at ${number(time)}`];
    const losses = new Plot({
      ...timePlot,
      name: `Loss by flow and by descent, ${run.name}`,
      title: "Loss",
      key: true,
      logY: () => state.logLoss,
      tip: tip("loss"),
    });
    const counts = new Plot({
      ...timePlot,
      name: `Active coordinates of ${run.name}`,
      title: "Active coordinates",
      key: true,
      floor: 0,
      tip: tip("active:"),
    });
    watch(["alpha", "seed", "logLoss"], () => losses.show(threeWays(run, "loss")));
    watch(["alpha", "seed"], () => counts.show(threeWays(run, "count")));
    watch(["time"], () => [losses, counts].forEach((plot) => plot.setCursor(state.time)));
    return h("div", { class: "pair" }, losses.figure, counts.figure);
  });
}

/** Algorithm 1, the flow and, where asked for, gradient descents: the "loss" or the "count" of active coordinates. */
function threeWays(run, what, withDescents = true) {
  const { staircase, flow, descentsHere = [], rules = [] } = run.seed ?? {};
  const lines = [];
  if (staircase) {
    const value = what === "loss" ? (begun) => staircase.lossAfter(begun) : (begun) => staircase.active(begun).length;
    lines.push({ name: "Algorithm 1", style: "theory", ...staircase.curve(value) });
  }
  if (flow) lines.push({ name: `flow, α = ${scaleText(state.alpha)}`, style: "main", ...flow[what] });
  const descents = withDescents ? descentsHere : [];
  descents.forEach((path, index) => {
    lines.push({ name: `descent, step ${number(path.step)}`, style: `second-${index}`, ...path[what] });
  });
  const ends = lines.map((line) => `${number(line.ys[line.ys.length - 1])} (${line.name})`);
  const none = withDescents && !descents.length ? `This run has no gradient descent at α = ${scaleText(state.alpha)}. ` : "";
  if (!lines.length) return { lines, rules, summary: "Not computed yet." };
  const messages = [...new Set(descents.map((path) => path.message))].join(" ");
  return { lines, rules, summary: `${none}At the end: ${ends.join(", ")}. ${messages}` };
}

/** Weights that are full matrices: singular values, one after another. */
export function fullWeights(runs) {
  sideBySide("full-here", runs, (run) => {
    const holder = h("div", { class: "triple" });
    watch(["seed"], () => {
      const full = run.seed?.full;
      if (!full) return holder.replaceChildren(absent("This run has no experiment with full weights."));
      const zoom = new Zoom();
      zoom.full = [full.times[0], full.times[full.times.length - 1]];
      const plots = [["Loss", [full.loss]], ["KQ", full.kq], ["VO", full.vo]];
      holder.replaceChildren(...plots.map(([what, curves]) => fullPlot(run, full, zoom, what, curves).figure));
    });
    return holder;
  });
}

function fullPlot(run, full, zoom, what, curves) {
  const single = what === "Loss";
  const plot = new Plot({
    name: `${single ? "Loss" : `Singular values of ${what}`}, full weights of ${run.name}`,
    title: single ? "Loss" : ["Singular values of ", ...fullProduct(what)],
    labelled: 3,
    xLabel: "training time (steps × step size)",
    xLabelShort: "training time",
    zoom,
    floor: 0,
    tip: (time, line) => line && [`${line.name} ${number(valueAt(line, time))}`, `at time ${number(time)}`],
  });
  const lines = curves.map((kept, index) => ({
    ...(single ? { name: "loss", style: "main" } : singularValue(index, full.dimension, curves.length)),
    direct: !single,
    ...unpack(full.times, kept),
  }));
  const last = (line) => line.ys[line.ys.length - 1];
  const rules = (full.predicted?.[what] ?? []).map((at, index) => ({ at, label: `${index + 1}` }));
  const large = lines.filter((line) => last(line) > 0.05 * last(lines[0])).length;
  const marked = rules.length ? " Vertical lines: when each rank is predicted." : "";
  const summary = single
    ? `From ${number(lines[0].ys[0])} to ${number(last(lines[0]))}; initial weights of size ${full.scale}, step ${full.step}. ${full.message}`
    : `At the end ${large} of ${lines.length} are above 5 % of the largest, ${number(last(lines[0]))}.${marked}`;
  plot.show({ lines, rules, summary });
  return plot;
}

/** Singular values are listed head after head, each head's from the largest to the smallest. */
function singularValue(index, dimension, count) {
  const label = `σ${(index % dimension) + 1}`;
  const name = count > dimension ? `head ${Math.floor(index / dimension) + 1}, ${label}` : label;
  return { name, label, shade: spread(index % dimension, dimension) };
}

/** Strict minima and noise robustness: a perturbed run beside the run itself. */
export function perturbations(runs) {
  const titles = { "strict-minima": "Strict minima", "noise-robustness": "Noise robustness" };
  sideBySide("perturbations-here", runs, (run) => {
    const holder = h("div", { class: "pair" });
    watch(["seed"], () => {
      const found = Object.entries(run.seed?.perturbations ?? {});
      const parts = found.map(([kind, record]) => perturbation(run, titles[kind] ?? kind, record));
      holder.replaceChildren(...(parts.length ? parts : [absent("This run has no perturbation experiments.")]));
    });
    return holder;
  });
}

function perturbation(run, title, record) {
  const { seed } = run;
  const distances = new Plot({
    name: `${title} of ${run.name}: distance from the run itself`,
    title: `${title}: largest |perturbed − unperturbed|`,
    xLabel: "rescaled time since the perturbation",
    xLabelShort: "time since",
    logY: () => true,
    floor: 1e-6,
    tip: (time, line) => line && [line.name, `${number(valueAt(line, time), 3)} after ${number(time, 3)}`],
  });
  const count = record.experiments.length;
  const lines = record.experiments.map((experiment, index) => ({
    name: `perturbed at ${number(experiment.start)}`,
    label: fixed(experiment.start, 2),
    shade: spread(index, count),
    direct: true,
    ...unpack(experiment.times, experiment.distance),
  }));
  const worst = lines.map((line) => line.ys[line.ys.length - 1]).reduce((a, b) => Math.max(a, b), 0);
  const noise = `Noise of std ${record.std} on weights above ${record.threshold}, ${plural(count, "experiment")}`;
  distances.show({ lines, summary: `${noise}; at the end the farthest is ${number(worst, 2)} away.` });

  const detail = new Plot({
    name: `${title} of ${run.name}: entries`,
    title: "Entries, dashed where perturbed",
    xLabel: "rescaled time since the perturbation",
    xLabelShort: "time since",
    tip: (time, line) => line && [seed.describe(line.coordinate), `${line.name} ${signed(valueAt(line, time))}`],
  });
  const shown = record.experiments.filter((experiment) => experiment.original);
  const options = shown.map((experiment, index) => h("option", { value: index }, `at ${number(experiment.start)}`));
  const select = h("select", {}, options);
  select.addEventListener("change", () => showDetail(seed, detail, shown[select.value]));
  showDetail(seed, detail, shown[0]);
  return h("div", { class: "perturbation" }, distances.figure, h("label", {}, "Perturbed ", select), detail.figure);
}

function showDetail(seed, plot, experiment) {
  const lines = Object.entries(experiment.original).flatMap(([coordinate, kept]) => {
    const shared = { coordinate: Number(coordinate), shade: seed.shade(Number(coordinate)), label: seed.short[coordinate] };
    return [
      { ...shared, name: "itself", direct: true, ...unpack(experiment.times, kept) },
      { ...shared, name: "perturbed", style: "dashed", ...unpack(experiment.times, experiment.perturbed[coordinate]) },
    ];
  });
  plot.show({ lines, summary: `${plural(lines.length / 2, "coordinate")} above the threshold.` });
}
