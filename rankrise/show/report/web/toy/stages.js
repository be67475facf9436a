// The stages: plots of the flow over Algorithm 1, the weights at the chosen time, and every stage in a table.

import { valueAt } from "../data.js";
import { absent, fixed, h, number, plural, s, scaleText, scrolling, sideBySide, signed, symbol, table } from "../dom.js";
import { colourOf } from "../plot.js";
import { extent, scale } from "../scales.js";
import { choose, state, watch } from "../state.js";
import { plotOfTime } from "./plots.js";

const RECENT = 6;
const MOST_ROWS = 30; // a longer table scrolls in itself

export function stages(runs) {
  sideBySide("stages-here", runs, (run) => {
    if (!run.seeds.size) return absent("This run has no curves yet.");
    const kinds = [...new Set([...run.seeds.values()].flatMap((seed) => seed.kinds))];
    const plots = [lossPlot(run), ...kinds.map((kind) => entriesPlot(run, kind))];
    return h("div", { class: "explorer" }, h("div", { class: "plots" }, plots.map((plot) => plot.figure)), panel(run));
  });
}

function lossPlot(run) {
  return plotOfTime({
    name: `Loss of ${run.name}`,
    title: "Loss",
    height: 200,
    labelled: run.labelled,
    key: true,
    tip: (time, line, y) => [`Loss ${number(y)}`, `${line.name} at ${number(time)}`],
    on: ["alpha", "seed", "staircase", "logLoss"],
    content: () => {
      const { flow, staircase, rules = [] } = run.seed ?? {};
      const lines = flow ? [{ name: `flow, α = ${scaleText(state.alpha)}`, style: "main", ...flow.loss }] : [];
      if (staircase && state.staircase) lines.unshift(theoryLine(staircase, "loss"));
      return { lines, rules, logY: state.logLoss, summary: lossSummary(flow, staircase) };
    },
  });
}

/** The "loss" of Algorithm 1, or its "count" of active coordinates. */
export function theoryLine(staircase, what) {
  const value = (begun) => (what === "loss" ? staircase.losses[begun] : staircase.points[begun].size);
  return { name: "Algorithm 1", style: "theory", ...staircase.line(value) };
}

function lossSummary(flow, staircase) {
  if (state.alpha === null) return "No flow in this run yet.";
  if (!flow) return `This run has no flow at α = ${scaleText(state.alpha)}.`;
  const { ys } = flow.loss;
  const fall = `At α = ${scaleText(state.alpha)} the loss falls from ${number(ys[0])} to ${number(ys.at(-1))}.`;
  return `${fall} Algorithm 1 ends at ${number(staircase.losses.at(-1))}. ${flow.message}`;
}

function entriesPlot(run, kind) {
  return plotOfTime({
    name: `Entries of ${kind}, ${run.name}`,
    title: ["Entries of ", ...symbol("w", kind[0]), " ⊙ ", ...symbol("w", kind[1])],
    labelled: run.labelled,
    tip: (time, { coordinate }, y) => {
      const { staircase } = run.seed;
      const theory = signed(staircase.value(coordinate, staircase.begun(time)));
      const values = [`flow ${signed(y)}`, `Algorithm 1 ${theory}`, `rescaled time ${number(time)}`];
      return [run.seed.describe(coordinate), ...values];
    },
    on: ["alpha", "seed", "staircase"],
    content: () => {
      const { seed } = run;
      const { flow, rules = [] } = seed ?? {};
      const coordinates = seed?.groups.get(kind) ?? [];
      const lines = flow ? coordinates.map((coordinate) => entryLine(seed, coordinate)) : [];
      if (state.staircase) lines.unshift(...coordinates.flatMap((coordinate) => stairLine(seed, coordinate, lines)));
      const active = coordinates.filter((coordinate) => flow?.isActive(coordinate, flow.end)).length;
      const above = `are active at the end (size above ${number(run.threshold)})`;
      return { lines, rules, summary: flow ? `${active} of ${coordinates.length} entries ${above}.` : "" };
    },
  });
}

function entryLine(seed, coordinate) {
  return {
    name: seed.labels[coordinate],
    label: seed.short[coordinate],
    coordinate,
    shade: seed.staircase.shade(coordinate),
    direct: seed.flow.switches[coordinate].length > 0,
    ...seed.flow.curves[coordinate],
  };
}

/** Algorithm 1 beneath the flow, for a coordinate that it learns. */
function stairLine({ labels, staircase }, coordinate, lines) {
  if (!staircase.order.has(coordinate)) return [];
  const twin = lines.find((line) => line.coordinate === coordinate);
  const curve = staircase.line((begun) => staircase.value(coordinate, begun));
  return [{ name: `${labels[coordinate]}, Algorithm 1`, quiet: true, twin, style: "theory", ...curve }];
}

/** The panel beside the plots: the weights at the chosen time, and what comes next. */
function panel(run) {
  const heading = h("h4");
  const next = h("p", { class: "next" });
  const strips = h("div", { class: "strips" });
  const numbers = h("div");
  const words = h("div", { class: "words", "aria-live": "polite" }, heading, next);
  watch(["playing"], () => words.setAttribute("aria-live", state.playing ? "off" : "polite"));
  watch(["time", "alpha", "seed"], () => {
    const { seed } = run;
    if (!seed) {
      strips.replaceChildren();
      return heading.replaceChildren(`This run has no seed ${state.seed}.`);
    }
    const time = Math.min(state.time, seed.until);
    const begun = seed.staircase.begun(time);
    const where = begun ? `Stage ${begun} of ${seed.stages.length}` : "Before the first stage";
    heading.replaceChildren(where, h("span", {}, ` at rescaled time ${fixed(time, 3)}`));
    next.replaceChildren(...nextWords(seed, time, begun));
    const groups = [...seed.groups];
    strips.replaceChildren(...groups.map(([kind, coordinates]) => strip(seed, kind, coordinates, time, begun)));
    numbers.replaceChildren(panelTable(seed, time, begun));
  });
  const signs = [h("span", { class: "key-bar" }), " flow  ", h("span", { class: "key-tick" }), " Algorithm 1  "];
  const key = h("p", { class: "key" }, signs, "▲▼ next, with its sign");
  return h("aside", { class: "now", "aria-label": `Now: ${run.name}` }, words, strips, key, numbers);
}

function nextWords({ labels, stages, message }, time, begun) {
  const stage = stages[begun];
  if (!stage) return [`Algorithm 1 has ended. ${message}`];
  const { tied, runner_up } = stage;
  const then = runner_up === null ? "" : `; the runner-up would come at ${number(runner_up)}`;
  return [
    "Algorithm 1: next is ",
    h("strong", {}, labels[stage.coordinate]),
    ` (${stage.sign > 0 ? "+" : "−"}) at `,
    h("strong", {}, number(stage.time)),
    `, ${number(stage.time - time, 2)} from now`,
    tied.length ? `, tied with ${tied.map((other) => labels[other]).join(", ")}` : then,
    ".",
  ];
}

/** A bar for each coordinate's value; a tick where Algorithm 1 has it; a triangle at the one that comes next. */
function strip(seed, kind, coordinates, time, begun) {
  const { flow, staircase, labels } = seed;
  const valueOf = (coordinate) => (flow ? (valueAt(flow.curves[coordinate], Math.min(time, flow.end)) ?? 0) : 0);
  const isActive = (coordinate) => flow?.isActive(coordinate, Math.min(time, flow.end));
  const height = scale(stripExtent(seed, coordinates), [104, 14], false, 3).pixel;
  const [width, zero] = [320, height(0)];
  const slot = width / coordinates.length;
  const active = coordinates.filter(isActive).map((one) => `${labels[one]} ${signed(valueOf(one), 2)}`);
  const words = `${kind}: ${active.length ? active.join(", ") : "nothing active"}`;
  const drawing = s("svg", { viewBox: `0 0 ${width} 122`, role: "img", "aria-label": words });
  drawing.append(s("line", { x1: 0, x2: width, y1: zero, y2: zero, class: "axis" }));
  coordinates.forEach((coordinate, index) => {
    const x = index * slot;
    if (isActive(coordinate)) {
      const y = height(valueOf(coordinate));
      const [top, tall] = [Math.min(zero, y), Math.max(1, Math.abs(y - zero))];
      const colour = colourOf({ shade: staircase.shade(coordinate) });
      drawing.append(s("rect", { x: x + slot * 0.2, width: slot * 0.6, y: top, height: tall, class: colour }));
    } else drawing.append(s("circle", { cx: x + slot / 2, cy: zero, r: Math.min(1.8, slot / 4), class: "rest" }));
    const theory = staircase.value(coordinate, begun);
    const level = height(theory);
    if (theory) drawing.append(s("line", { x1: x + 1, x2: x + slot - 1, y1: level, y2: level, class: "tick" }));
    const entry = labels[coordinate].split(" ").pop();
    if (slot > 7 * entry.length) drawing.append(s("text", { x: x + slot / 2, y: 120, "text-anchor": "middle" }, entry));
  });
  const place = coordinates.indexOf(seed.stages[begun]?.coordinate);
  if (place >= 0) drawing.append(nextMark((place + 0.5) * slot, zero, seed.stages[begun], seed.short, width));
  return h("div", { class: "strip" }, h("span", { class: "strip-name" }, kind), drawing);
}

/** The range of all values that the coordinates ever have, so that bars keep their scale as time goes. */
function stripExtent({ flow, stages }, coordinates) {
  const inFlow = coordinates.flatMap((coordinate) => flow?.curves[coordinate].ys ?? []);
  const inTheory = stages.flatMap((stage) => stage.point).filter(([coordinate]) => coordinates.includes(coordinate));
  return extent([0, ...inFlow, ...inTheory.map(([, value]) => value)], false);
}

function nextMark(x, middle, { sign, coordinate }, short, width) {
  const y = middle - sign * 8;
  const anchor = x < 24 ? "start" : x > width - 24 ? "end" : "middle";
  const triangle = s("path", { d: `M${x - 5} ${y}h10l-5 ${-sign * 8}z` });
  const label = s("text", { x, y: sign > 0 ? y - 12 : y + 20, "text-anchor": anchor }, short[coordinate]);
  return s("g", { class: "next-mark" }, triangle, label);
}

/** How many are active, the loss, and the coordinates learned last, by the flow and by Algorithm 1. */
function panelTable({ flow, staircase, short }, time, begun) {
  if (state.alpha === null) return absent("No flow yet.");
  if (!flow) return absent(`No flow at α = ${scaleText(state.alpha)} in this run.`);
  const shown = Math.min(time, flow.end);
  const active = flow.active(shown).sort((a, b) => flow.switches[b][0] - flow.switches[a][0]);
  const rows = active.slice(0, RECENT).map((coordinate) => [
    short[coordinate],
    signed(valueAt(flow.curves[coordinate], shown)),
    signed(staircase.value(coordinate, begun)),
  ]);
  const totals = [
    ["active", active.length, staircase.points[begun].size],
    ["loss", number(valueAt(flow.loss, shown)), number(staircase.losses[begun])],
  ];
  const caption = active.length > RECENT ? `In numbers, with the ${RECENT} entries learned last` : "In numbers";
  return table(caption, ["", `flow, ${scaleText(state.alpha)}`, "Algorithm 1"], [...totals, ...rows]);
}

/** Every stage in numbers: what Algorithm 1 says, and when the flow does it. */
export function stageTable(runs) {
  sideBySide("table-here", runs, (run) => {
    const holder = scrolling(`Stages of ${run.name}`, null, "stage-list");
    watch(["alpha", "seed"], () => {
      const { seed } = run;
      if (!seed) return holder.replaceChildren(absent("Algorithm 1 has not been run here."));
      const count = plural(seed.stages.length, "stage");
      const caption = seed.flow ? `${count}; the flow is the one at α = ${scaleText(state.alpha)}` : count;
      const ofFlow = seed.flow ? ["flow", "flow − T"] : [];
      const ofStage = ["loss after", "active", "runner-up", "remarks"];
      const rows = seed.stages.map((_, index) => stageRow(seed, index));
      const made = table(caption, ["stage", "T", "coordinate", "sign", ...ofFlow, ...ofStage], rows);
      made.querySelectorAll("tbody tr").forEach((row, index) => {
        row.addEventListener("click", () => choose({ time: seed.stages[index].time }));
      });
      holder.classList.toggle("tall", seed.stages.length > MOST_ROWS);
      holder.replaceChildren(made);
    });
    watch(["time", "alpha", "seed"], () => {
      const begun = run.seed?.staircase.begun(state.time) ?? 0;
      holder.querySelectorAll("tbody tr").forEach((row, index) => row.classList.toggle("current", index === begun - 1));
    });
    return holder;
  });
}

function stageRow({ stages, staircase, flow, labels }, index) {
  const stage = stages[index];
  const since = flow?.activeNear(stage.coordinate, stage.time) ?? null;
  const names = (coordinates) => coordinates.map((coordinate) => labels[coordinate]).join(", ");
  const remarks = [
    staircase.order.get(stage.coordinate) === index ? "" : "again",
    stage.left.length ? `${names(stage.left)} left` : "",
    stage.tied.length ? `tied with ${names(stage.tied)}` : "",
  ];
  return [
    index + 1,
    fixed(stage.time, 4),
    labels[stage.coordinate],
    stage.sign > 0 ? "+" : "−",
    ...(flow ? [fixed(since, 4), since === null ? "–" : signed(since - stage.time, 4)] : []),
    number(stage.loss),
    stage.point.length,
    fixed(stage.runner_up, 4),
    remarks.filter(Boolean).join("; "),
  ];
}
