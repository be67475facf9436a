// The stages: plots of the flow over Algorithm 1, the weights at the chosen time, and every stage in a table.

import { choose, state, watch } from "../controls.js";
import { extent, scale, valueAt } from "../data.js";
import { absent, fixed, h, number, plural, s, scaleText, scrolling, signed, symbol, table } from "../dom.js";
import { colourOf } from "../plot.js";
import { plotOfTime, sideBySide } from "./run.js";

const RECENT = 6;
const MOST_ROWS = 30; // a longer table scrolls in itself

export function stages() {
  sideBySide("stages-here", (run) => {
    if (!run.seeds.size) return absent("This run has no curves yet.");
    const kinds = new Set([...run.seeds.values()].flatMap((seed) => seed.kinds));
    const ofLoss = { name: `Loss of ${run.name}`, title: "Loss", height: 200, labelled: run.labelled };
    const plots = [plotOfWays(run, "loss", false, ofLoss), ...[...kinds].map((kind) => entriesPlot(run, kind))];
    return h("div", { class: "explorer" }, h("div", { class: "plots" }, plots.map((plot) => plot.figure)), panel(run));
  });
}

/** The "loss" or the "count" of active coordinates, by Algorithm 1, the flow and, if asked for, gradient descents. */
export function plotOfWays(run, what, withDescents, options) {
  const unit = what === "loss" ? "loss" : "active:";
  return plotOfTime({
    key: true,
    floor: what === "loss" ? undefined : 0,
    tip: (time, line, y) => [line.name, `${unit} ${number(y)} at ${number(time)}`],
    on: ["alpha", "seed", "staircase", "logLoss"],
    content: () => {
      const { seed } = run;
      if (!seed) return { lines: [], summary: "Not computed yet." };
      const { flow, rules } = seed;
      const lines = state.staircase ? [seed.theory(what)] : [];
      if (flow) lines.push({ name: `flow, ${flow.scale}`, style: "main", ...flow[what] });
      const descents = withDescents ? seed.descents.filter((path) => path.log10_alpha === state.alpha) : [];
      descents.forEach((path, index) => {
        lines.push({ name: `descent, step ${number(path.step)}`, style: `second-${index}`, ...path[what] });
      });
      const courses = lines.map(({ name, ys }) => `${number(ys[0])} to ${number(ys.at(-1))} (${name})`);
      return { lines, rules, logY: what === "loss" && state.logLoss, summary: `From ${courses.join(", ")}.` };
    },
    ...options,
  });
}

function entriesPlot(run, kind) {
  return plotOfTime({
    name: `Entries of ${kind}, ${run.name}`,
    title: ["Entries of ", ...symbol("w", kind[0]), " ⊙ ", ...symbol("w", kind[1])],
    labelled: run.labelled,
    tip: (time, { coordinate }, y) => {
      const theory = signed(run.seed.value(coordinate, run.seed.begun(time)));
      const values = [`flow ${signed(y)}`, `Algorithm 1 ${theory}`, `rescaled time ${number(time)}`];
      const stage = run.seed.order.get(coordinate);
      const when = stage === undefined ? "not learned" : `stage ${stage + 1}`;
      return [`${run.seed.labels[coordinate]}, ${when}`, ...values];
    },
    on: ["alpha", "seed", "staircase"],
    content: () => {
      const { seed } = run;
      const { flow, rules = [] } = seed ?? {};
      const coordinates = seed?.groups.get(kind) ?? [];
      const lines = coordinates.flatMap((coordinate) => entryLines(seed, flow, coordinate));
      const active = coordinates.filter((coordinate) => flow?.isActive(coordinate, flow.end)).length;
      const above = `are active at the end (size above ${number(run.threshold)})`;
      const summary = flow ? `${active} of ${coordinates.length} entries ${above}.` : "";
      return { lines: lines.sort((a, b) => Boolean(b.quiet) - Boolean(a.quiet)), rules, summary };
    },
  });
}

/** A coordinate by the flow, and by Algorithm 1 if that learns it. */
function entryLines(seed, flow, coordinate) {
  const [name, label] = [seed.labels[coordinate], seed.short[coordinate]];
  const look = { shade: seed.shade(coordinate), direct: flow?.switches[coordinate].length > 0 };
  const line = { name, label, coordinate, ...look, ...flow?.curves[coordinate] };
  const lines = flow ? [line] : [];
  if (!state.staircase || !seed.order.has(coordinate)) return lines;
  const stairs = seed.line((begun) => seed.value(coordinate, begun));
  return [...lines, { name: `${name}, Algorithm 1`, quiet: true, style: "theory", ...stairs }];
}

/** The panel beside the plots: the weights at the chosen time, and what comes next. */
function panel(run) {
  const heading = h("h4");
  const next = h("p", { class: "next" });
  const strips = h("div", { class: "strips" });
  const numbers = h("div");
  const words = h("div", { class: "words" }, heading, next);
  watch(["playing"], () => words.setAttribute("aria-live", state.playing ? "off" : "polite"));
  watch(["time", "alpha", "seed"], () => {
    const { seed } = run;
    if (!seed) {
      [next, strips, numbers].forEach((part) => part.replaceChildren());
      return heading.replaceChildren(`This run has no seed ${state.seed}.`);
    }
    const time = Math.min(state.time, seed.until);
    const begun = seed.begun(time);
    const where = begun ? `Stage ${begun} of ${seed.stages.length}` : "Before the first stage";
    heading.replaceChildren(where, h("span", {}, ` at rescaled time ${fixed(time, 3)}`));
    const stage = seed.stages[begun];
    next.replaceChildren(...(stage ? nextWords(seed, stage, time) : [`Algorithm 1 has ended. ${seed.message}`]));
    const groups = [...seed.groups];
    strips.replaceChildren(...groups.map(([kind, coordinates]) => strip(seed, kind, coordinates, time, begun)));
    numbers.replaceChildren(panelTable(seed, time, begun));
  });
  const signs = [h("span", { class: "key-bar" }), " flow  ", h("span", { class: "key-tick" }), " Algorithm 1  "];
  const key = h("p", { class: "key" }, signs, "▲▼ next, with its sign");
  return h("aside", { class: "now", "aria-label": `Now: ${run.name}` }, words, strips, key, numbers);
}

function nextWords({ labels }, { coordinate, sign, runner_up, time }, now) {
  const then = !Number.isFinite(runner_up) ? "" : `; the runner-up would come at ${number(runner_up)}`;
  const [name, when] = [labels[coordinate], number(time)].map((text) => h("strong", {}, text));
  const wait = `, ${number(time - now, 2)} from now${then}.`;
  return ["Algorithm 1: next is ", name, ` (${sign > 0 ? "+" : "−"}) at `, when, wait];
}

/** A bar for each coordinate's value; a tick where Algorithm 1 has it; a triangle at the one that comes next. */
function strip(seed, kind, coordinates, time, begun) {
  const { flow, labels, stages } = seed;
  const now = Math.min(time, flow?.end ?? 0);
  const valueOf = (coordinate) => (flow ? valueAt(flow.curves[coordinate], now) : 0);
  const isActive = (coordinate) => flow?.isActive(coordinate, now);
  // The range of all values that the coordinates ever have, so that bars keep their scale as time goes.
  const inFlow = coordinates.flatMap((coordinate) => flow?.curves[coordinate].ys ?? []);
  const inTheory = stages.flatMap(({ point }) => point).filter(([coordinate]) => coordinates.includes(coordinate));
  const range = extent([0, ...inFlow, ...inTheory.map(([, value]) => value)], false);
  const height = scale(range, [104, 14], false, 3).pixel;
  const [width, zero] = [320, height(0)];
  const slot = width / coordinates.length;
  const active = coordinates.filter(isActive).map((one) => `${labels[one]} ${signed(valueOf(one), 2)}`);
  const words = `${kind}: ${active.join(", ") || "nothing active"}`;
  const drawing = s("svg", { viewBox: `0 0 ${width} 122`, role: "img", "aria-label": words });
  let mark = "";
  drawing.append(s("line", { x1: 0, x2: width, y1: zero, y2: zero, class: "axis" }));
  coordinates.forEach((coordinate, index) => {
    const x = index * slot;
    const middle = x + slot / 2;
    if (isActive(coordinate)) {
      const y = height(valueOf(coordinate));
      const [top, tall] = [Math.min(zero, y), Math.max(1, Math.abs(y - zero))];
      const colour = colourOf({ shade: seed.shade(coordinate) });
      drawing.append(s("rect", { x: x + slot * 0.2, width: slot * 0.6, y: top, height: tall, class: colour }));
    } else drawing.append(s("circle", { cx: middle, cy: zero, r: Math.min(1.8, slot / 4), class: "rest" }));
    const theory = seed.value(coordinate, begun);
    const level = height(theory);
    if (theory) drawing.append(s("line", { x1: x + 1, x2: x + slot - 1, y1: level, y2: level, class: "tick" }));
    const entry = labels[coordinate].split(" ").pop();
    if (slot > 7 * entry.length) drawing.append(s("text", { x: middle, y: 120, "text-anchor": "middle" }, entry));
    if (coordinate !== stages[begun]?.coordinate) return;
    const { sign } = stages[begun];
    const base = zero - sign * 8;
    const triangle = s("path", { d: `M${middle - 5} ${base}h10l-5 ${-sign * 8}z` });
    const anchor = middle < 24 ? "start" : middle > width - 24 ? "end" : "middle";
    const place = { x: middle, y: sign > 0 ? base - 12 : base + 20, "text-anchor": anchor };
    mark = s("g", { class: "next-mark" }, triangle, s("text", place, seed.short[coordinate]));
  });
  drawing.append(mark); // above all bars
  return h("div", { class: "strip" }, h("span", { class: "strip-name" }, kind), drawing);
}

/** How many are active, the loss, and the coordinates learned last, by the flow and by Algorithm 1. */
function panelTable(seed, time, begun) {
  const { flow, points, losses, short } = seed;
  if (!flow) return absent("No flow at this α in this run.");
  const now = Math.min(time, flow.end);
  const active = [...short.keys()].filter((coordinate) => flow.isActive(coordinate, now));
  active.sort((a, b) => flow.switches[b][0] - flow.switches[a][0]);
  const rows = active.slice(0, RECENT).map((coordinate) => [
    short[coordinate],
    signed(valueAt(flow.curves[coordinate], now)),
    signed(seed.value(coordinate, begun)),
  ]);
  const totals = [
    ["active", active.length, points[begun].size],
    ["loss", number(valueAt(flow.loss, now)), number(losses[begun])],
  ];
  const caption = active.length > RECENT ? `In numbers, with the ${RECENT} entries learned last` : "In numbers";
  return table(caption, ["", `flow, ${scaleText(state.alpha)}`, "Algorithm 1"], [...totals, ...rows]);
}

/** Every stage in numbers: what Algorithm 1 says, and when the flow does it. */
export function stageTable() {
  sideBySide("table-here", (run) => {
    const holder = h("div");
    watch(["alpha", "seed"], () => {
      const { seed } = run;
      if (!seed) return holder.replaceChildren(absent("Algorithm 1 has not been run here."));
      const { flow, stages, labels } = seed;
      const count = plural(stages.length, "stage");
      const caption = flow ? `${count}; the flow is the one at ${flow.scale}` : count;
      const head = ["stage", "T", "coordinate", "sign", ...(flow ? ["flow", "flow − T"] : [])];
      head.push("loss after", "active", "runner-up");
      const rows = stages.map(({ time, coordinate, sign, loss, point, runner_up }, index) => {
        const since = flow?.activeNear(coordinate, time);
        const ofFlow = flow ? [fixed(since, 4), signed(since - time, 4)] : [];
        const about = [index + 1, fixed(time, 4), labels[coordinate], sign > 0 ? "+" : "−"];
        return [...about, ...ofFlow, number(loss), point.length, fixed(runner_up, 4)];
      });
      const kind = stages.length > MOST_ROWS ? "stage-list tall" : "stage-list";
      holder.replaceChildren(scrolling(`Stages of ${run.name}`, table(caption, head, rows), kind));
      holder.querySelectorAll("tbody tr").forEach((row, index) => {
        row.addEventListener("click", () => choose({ time: stages[index].time }));
      });
    });
    watch(["time", "alpha", "seed"], () => {
      const begun = run.seed?.begun(state.time);
      holder.querySelectorAll("tbody tr").forEach((row, index) => row.classList.toggle("current", index === begun - 1));
    });
    return holder;
  });
}
