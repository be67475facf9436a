// The stages: what the flow does, what Algorithm 1 says, and a slider through rescaled time.

import { extent, scale } from "../axes.js";
import { valueAt } from "../curves.js";
import { fixed, h, number, s, scaleText, signed, table } from "../dom.js";
import { absent, sideBySide } from "../layout.js";
import { colourOf, Plot } from "../plot.js";
import { state, watch } from "../state.js";
import { timePlot, timeZoom } from "./clock.js";
import { controls } from "./controls.js";
import { diagonalProduct } from "./runs.js";

const RECENT = 6;

export function explore(runs) {
  const ends = runs.flatMap((run) => [...run.seeds.values()].map((seed) => seed.until));
  timeZoom.full = [0, ends.length ? Math.max(...ends) : 1];
  controls(runs);
  sideBySide("stages-here", runs, (run) => {
    if (!run.seeds.size) return absent("This run has no curves yet.");
    const plots = h("div", { class: "plots" });
    plots.append(lossPlot(run).figure);
    const kinds = new Set([...run.seeds.values()].flatMap((seed) => seed.kinds));
    kinds.forEach((kind) => plots.append(entriesPlot(run, kind).figure));
    return h("div", { class: "explorer" }, plots, now(run));
  });
}

function lossPlot(run) {
  const plot = new Plot({
    ...timePlot,
    name: `Loss of ${run.name}`,
    title: "Loss",
    logY: () => state.logLoss,
    height: 200,
    labelled: run.labelled,
    key: true,
    tip: (time, line) => line && [`Loss ${number(valueAt(line, time))}`, `${line.name} at ${number(time)}`],
  });
  watch(["alpha", "seed", "staircase", "logLoss"], () => {
    const { flow, staircase, rules } = run.seed ?? { rules: [] };
    const lines = [];
    if (staircase && state.staircase) {
      lines.push({ name: "Algorithm 1", label: "", style: "theory", ...staircase.curve((begun) => staircase.lossAfter(begun)) });
    }
    if (flow) lines.push({ name: `flow, α = ${scaleText(state.alpha)}`, label: "", style: "main", ...flow.loss });
    plot.show({ lines, rules, summary: lossSummary(flow, staircase) });
  });
  watch(["time"], () => plot.setCursor(state.time));
  return plot;
}

function lossSummary(flow, staircase) {
  if (!flow) return state.alpha === null ? "No flow in this run yet." : `This run has no flow at α = ${scaleText(state.alpha)}.`;
  const first = flow.loss.ys[0];
  const last = flow.loss.ys[flow.loss.ys.length - 1];
  const theory = number(staircase.lossAfter(staircase.times.length));
  const fall = `At α = ${scaleText(state.alpha)} the loss falls from ${number(first)} to ${number(last)}.`;
  return `${fall} Algorithm 1 ends at ${theory}. ${flow.message}`;
}

function entriesPlot(run, kind) {
  const plot = new Plot({
    ...timePlot,
    name: `Entries of ${kind}, ${run.name}`,
    title: ["Entries of ", ...diagonalProduct(kind)],
    labelled: run.labelled,
    tip: (time, line) => {
      if (!line) return null;
      const { seed } = run;
      const rows = [seed.describe(line.coordinate), `flow ${signed(valueAt(line, time))}`];
      rows.push(`Algorithm 1 ${signed(seed.staircase.value(line.coordinate, seed.staircase.begun(time)))}`);
      return [...rows, `rescaled time ${number(time)}`];
    },
  });
  watch(["alpha", "seed", "staircase"], () => {
    const { seed } = run;
    const coordinates = seed?.groups.get(kind) ?? [];
    const flow = seed?.flow;
    const lines = coordinates.map((coordinate) => entryLine(seed, flow, coordinate)).filter(Boolean);
    if (state.staircase) {
      const steps = coordinates.filter((coordinate) => seed.shade(coordinate) !== null);
      lines.unshift(...steps.map((coordinate) => stairLine(seed, coordinate, lines)));
    }
    const learned = flow ? coordinates.filter((coordinate) => flow.isActive(coordinate, flow.end)).length : 0;
    const summary = flow
      ? `${learned} of ${coordinates.length} entries are active at the end (size above ${number(run.threshold)}).`
      : "";
    plot.show({ lines, rules: seed?.rules ?? [], summary });
  });
  watch(["time"], () => plot.setCursor(state.time));
  return plot;
}

function entryLine(seed, flow, coordinate) {
  if (!flow) return null;
  const shade = seed.shade(coordinate);
  const active = flow.activation[coordinate] !== null;
  return { name: seed.labels[coordinate], label: seed.short[coordinate], coordinate, shade, direct: active, ...flow.curves[coordinate] };
}

function stairLine(seed, coordinate, lines) {
  const { staircase } = seed;
  const twin = lines.find((line) => line.coordinate === coordinate);
  const name = `${seed.labels[coordinate]}, Algorithm 1`;
  return { name, label: "", quiet: true, twin, style: "theory", ...staircase.curve((begun) => staircase.value(coordinate, begun)) };
}

/** The panel beside the plots: the weights at the chosen time, and what comes next. */
function now(run) {
  const heading = h("h4", {});
  const next = h("p", { class: "next" });
  const strips = h("div", { class: "strips" });
  const numbers = h("div", {});
  const words = h("div", { class: "words", "aria-live": "polite" }, heading, next);
  watch(["playing"], () => words.setAttribute("aria-live", state.playing ? "off" : "polite"));
  watch(["time", "alpha", "seed"], () => {
    const { seed } = run;
    if (!seed) {
      strips.replaceChildren();
      return heading.replaceChildren(`This run has no seed ${state.seed}.`);
    }
    const time = Math.min(state.time, seed.until);
    const { staircase } = seed;
    const begun = staircase.begun(time);
    const where = begun ? `Stage ${begun} of ${staircase.times.length}` : "Before the first stage";
    heading.replaceChildren(where, h("span", {}, ` at rescaled time ${fixed(time, 3)}`));
    next.replaceChildren(...nextWords(seed, time, begun));
    strips.replaceChildren(...[...seed.groups].map(([kind, coordinates]) => strip(seed, kind, coordinates, time, begun)));
    numbers.replaceChildren(nowTable(seed, time, begun));
  });
  const key = h(
    "p",
    { class: "key" },
    h("span", { class: "key-bar" }), " flow  ",
    h("span", { class: "key-tick" }), " Algorithm 1  ",
    "▲▼ next, with its sign",
  );
  return h("aside", { class: "now", "aria-label": `Now: ${run.name}` }, words, strips, key, numbers);
}

function nextWords(seed, time, begun) {
  const { staircase } = seed;
  const stage = staircase.stages[begun];
  if (!stage) return [`Algorithm 1 has ended. ${staircase.message}`];
  const words = [
    "Algorithm 1: next is ",
    h("strong", {}, seed.labels[stage.coordinate]),
    ` (${stage.sign > 0 ? "+" : "−"}) at `,
    h("strong", {}, number(stage.time)),
    `, ${number(stage.time - time, 2)} from now`,
  ];
  if (stage.tied.length) words.push(`, tied with ${stage.tied.map((other) => seed.labels[other]).join(", ")}`);
  else if (stage.runner_up !== null) words.push(`; the runner-up would come at ${number(stage.runner_up)}`);
  return [...words, "."];
}

/** A bar for each coordinate, its value now; a tick where Algorithm 1 has it; a triangle at the one that comes next. */
function strip(seed, kind, coordinates, time, begun) {
  const { flow, staircase } = seed;
  const values = coordinates.map((coordinate) => (flow ? (valueAt(flow.curves[coordinate], Math.min(time, flow.end)) ?? 0) : 0));
  const height = scale(stripExtent(seed, coordinates), [104, 14], false, 3).pixel;
  const [width, zero] = [320, height(0)];
  const slot = width / coordinates.length;
  const drawing = s("svg", { viewBox: `0 0 ${width} 122`, role: "img", "aria-label": stripWords(seed, kind, coordinates, values) });
  drawing.append(s("line", { x1: 0, x2: width, y1: zero, y2: zero, class: "axis" }));
  coordinates.forEach((coordinate, index) => {
    const x = index * slot;
    if (flow?.isActive(coordinate, time)) {
      const y = height(values[index]);
      const bar = { x: x + slot * 0.2, width: slot * 0.6, y: Math.min(zero, y), height: Math.max(1, Math.abs(y - zero)) };
      drawing.append(s("rect", { ...bar, class: colourOf({ shade: seed.shade(coordinate) }) }));
    } else drawing.append(s("circle", { cx: x + slot / 2, cy: zero, r: Math.min(1.8, slot / 4), class: "rest" }));
    const theory = staircase.value(coordinate, begun);
    if (theory) drawing.append(s("line", { x1: x + 1, x2: x + slot - 1, y1: height(theory), y2: height(theory), class: "tick" }));
    const entry = seed.labels[coordinate].split(" ").pop();
    if (slot > 7 * entry.length) drawing.append(s("text", { x: x + slot / 2, y: 120, "text-anchor": "middle" }, entry));
  });
  const upcoming = staircase.stages[begun];
  const place = coordinates.indexOf(upcoming?.coordinate);
  if (place >= 0) drawing.append(nextMark((place + 0.5) * slot, zero, upcoming.sign, seed.short[upcoming.coordinate], width));
  return h("div", { class: "strip" }, h("span", { class: "strip-name" }, kind), drawing);
}

/** The range of values that coordinates of a kind have anywhere, so that bars keep their scale as time goes. */
function stripExtent(seed, coordinates) {
  const inFlow = coordinates.flatMap((coordinate) => Array.from(seed.flow?.curves[coordinate].ys ?? []));
  const inTheory = seed.staircase.stages.flatMap((stage) => stage.point).filter(([coordinate]) => coordinates.includes(coordinate));
  return extent([0, ...inFlow, ...inTheory.map(([, value]) => value)], false);
}

function stripWords(seed, kind, coordinates, values) {
  const active = coordinates
    .map((coordinate, index) => [coordinate, values[index]])
    .filter(([coordinate]) => seed.flow?.isActive(coordinate, Math.min(state.time, seed.flow.end)))
    .map(([coordinate, value]) => `${seed.labels[coordinate]} ${signed(value, 2)}`);
  return `${kind}: ${active.length ? active.join(", ") : "nothing active"}`;
}

function nextMark(x, middle, sign, label, width) {
  const y = middle - sign * 8;
  const anchor = x < 24 ? "start" : x > width - 24 ? "end" : "middle";
  return s(
    "g",
    { class: "next-mark" },
    s("path", { d: `M${x - 5} ${y}h10l-5 ${-sign * 8}z` }),
    s("text", { x, y: sign > 0 ? y - 12 : y + 20, "text-anchor": anchor }, label),
  );
}

/** The flow and Algorithm 1 in numbers: how many are active, the loss, and the coordinates learned last. */
function nowTable(seed, time, begun) {
  const { flow, staircase } = seed;
  if (!flow) return absent(state.alpha === null ? "No flow yet." : `No flow at α = ${scaleText(state.alpha)} in this run.`);
  const shown = Math.min(time, flow.end);
  const active = flow.active(shown).sort((a, b) => flow.activation[b] - flow.activation[a]);
  const rows = active.slice(0, RECENT).map((coordinate) => [
    seed.short[coordinate],
    signed(valueAt(flow.curves[coordinate], shown)),
    signed(staircase.value(coordinate, begun)),
  ]);
  const totals = [
    ["active", active.length, staircase.active(begun).length],
    ["loss", number(valueAt(flow.loss, shown)), number(staircase.lossAfter(begun))],
  ];
  const caption = active.length > RECENT ? `In numbers, with the ${RECENT} entries learned last` : "In numbers";
  return table(caption, ["", `flow, ${scaleText(state.alpha)}`, "Algorithm 1"], [...totals, ...rows]);
}
