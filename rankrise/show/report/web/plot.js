// A line plot in SVG: drag to zoom, hover to read, click to choose a time; keys zoom too; its numbers lie beneath it.

import { watch, Zoom } from "./controls.js";
import { countUpTo, extent, highest, lowest, scale, valueAt } from "./data.js";
import { h, number, s, scrolling, table } from "./dom.js";

const NARROWEST = 200;
const MOST_LETTERS = 12;
const LETTER_WIDTH = 6.6;
const NUDGES = [0, 3, 6, 9, 12, 15, 18].flatMap((away) => [-away, away]); // pixels from a line's end to its label
const REACH = 36; // pixels from the pointer to the line that it reads
let plotCount = 0;

/** The CSS classes of a line: its shade in the order of learning, and its style. */
export function colourOf({ shade, style = "" }) {
  if (shade === undefined) return style;
  return `${shade === null ? "idle" : `shade-${shade}`} ${style}`;
}

/**
 * A figure that draws `content()` anew whenever one of the choices named in `on` changes; null hides it.
 *
 * Options and content are one object: an option may be fixed, or come with the content.
 * - name (for screen readers), title, xLabel, logX, logY, floor (of y), height
 * - labelled: letters to leave room for at the right; key: name the lines above
 * - zoom: shared with other plots; cursor: [choices, function that gives the marked x]
 * - onPick(x) on a click; tip(x, line, y) gives lines of text
 * - lines: {name, label, xs, ys, step, shade, style, direct, quiet, unkeyed, band: {low, high}};
 *   `direct` ones have their label at the right, `quiet` ones are not read, `unkeyed` ones not named above;
 *   those without points are left out
 * - rules: thin upright lines {at, label, interval}; greyed: ranges [from, to] that do not set the range of y
 * - summary: the sentences beneath
 */
export class Plot {
  constructor(options) {
    this.options = options;
    this.id = `plot-${(plotCount += 1)}`;
    this.cursor = null;
    this.zoom = options.zoom ?? new Zoom();
    const described = { "aria-roledescription": "plot", "aria-describedby": `${this.id}-summary` };
    this.svg = s("svg", { role: "group", tabindex: 0, ...described, ...this.handlers() });
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.reset = h("button", { type: "button", class: "reset", onclick: () => this.zoom.set(null) }, "Show all");
    this.stage = h("div", { class: "stage" }, this.svg, this.tip);
    this.summary = h("figcaption", { id: `${this.id}-summary` });
    this.data = h("details", { class: "data", ontoggle: () => this.fillData() }, h("summary", {}, "Data"));
    this.heading = h("h4");
    this.legend = h("div", { class: "plot-key", "aria-hidden": "true", hidden: !options.key });
    const top = h("div", { class: "plot-title" }, this.heading, this.reset);
    this.figure = h("figure", { class: "plot" }, top, this.legend, this.stage, this.summary, this.data);
    this.zoom.followers.push(() => this.draw());
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width >= NARROWEST && width !== this.width) this.draw(width);
    }).observe(this.stage);
    watch(options.on ?? [], () => this.refresh());
    if (options.cursor) watch(options.cursor[0], () => this.setCursor(options.cursor[1]()));
  }

  refresh() {
    const found = this.options.content();
    this.figure.hidden = !found;
    if (!found) return;
    const lines = found.lines.filter(({ xs }) => xs.length);
    this.content = { height: 230, rules: [], greyed: [], summary: "", ...this.options, ...found, lines };
    this.svg.setAttribute("aria-label", this.content.name);
    this.heading.replaceChildren(...[this.content.title].flat());
    this.summary.replaceChildren(this.content.summary);
    const keyed = lines.filter((line) => !line.unkeyed).map((line) => {
      const swatch = s("path", { d: "M0 4H24", class: `line ${colourOf(line)}` });
      return h("span", {}, s("svg", { viewBox: "0 0 24 8" }, swatch), line.name);
    });
    this.legend.replaceChildren(...keyed);
    const ends = lines.flatMap(({ xs }) => [xs[0], xs.at(-1)]);
    if (!this.options.zoom && ends.length) this.zoom.full = [lowest(ends), highest(ends)];
    this.fillData();
    this.draw();
  }

  /** The range of x in view. */
  get view() {
    const [low, high] = this.zoom.range ?? this.zoom.full;
    return [low, high > low ? high : low + 1];
  }

  inView(x) {
    return x >= this.view[0] && x <= this.view[1];
  }

  draw(width = this.width) {
    if (!this.content) return;
    const { lines, greyed, height, logX, logY, floor, labelled } = this.content;
    this.stage.hidden = !lines.length;
    if (!width || !lines.length) return;
    this.width = width;
    const written = lines.filter((line) => line.direct).map((line) => line.label.length);
    const letters = Math.min(MOST_LETTERS, Math.max(labelled ?? 0, ...written));
    const [top, right, bottom] = [18, width - (letters ? 12 + LETTER_WIDTH * letters : 12), height - 34];
    this.y = scale(extent(this.shownValues(), logY, floor), [bottom, top], logY, 5);
    const left = Math.max(48, ...this.y.ticks.map(({ text }) => 12 + LETTER_WIDTH * text.length));
    this.x = scale(this.view, [left, right], logX, (right - left) / 90);
    this.box = { left, right, top, bottom };
    this.reset.hidden = !this.zoom.range;

    const area = { x: left, y: top - 4, width: right - left, height: bottom - top + 8 };
    const clipped = { "clip-path": `url(#${this.id}-clip)` };
    this.paths = new Map(lines.map((line) => [line, this.path(line)]));
    const drawn = (wanted) => lines.filter(wanted).map((line) => this.paths.get(line));
    this.brush = s("rect", { class: "brush", y: top, height: bottom - top, hidden: true });
    this.cursorMark = s("g", { class: "cursor" });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      s("clipPath", { id: `${this.id}-clip` }, s("rect", area)),
      s("g", { class: "greyed", "aria-hidden": "true" }, greyed.map((range) => this.upright(range))),
      this.grid(),
      this.ruleMarks(),
      s("g", { class: "bands", ...clipped }, lines.filter((line) => line.band).map((line) => this.band(line))),
      s("g", { class: "lines", ...clipped }, drawn(({ xs }) => xs.length > 1)),
      s("g", { class: "lines" }, drawn(({ xs }) => xs.length === 1 && this.inView(xs[0]))), // whole dots
      s("g", { class: "labels" }, this.directLabels()),
      this.cursorMark,
      this.brush,
    );
    this.setCursor(this.cursor);
  }

  /** The values in view that set the range of y: those in no greyed range, if there are any such. */
  shownValues() {
    const { lines, greyed } = this.content;
    const clear = (x) => !greyed.some(([from, to]) => x >= from && x < to);
    const found = (counts) =>
      lines.flatMap((line) => {
        const bounds = line.band ? [line.ys, line.band.low, line.band.high] : [line.ys];
        const isIn = (_, at) => this.inView(line.xs[at]) && counts(line.xs[at]);
        const edges = this.view.filter(counts).map((x) => valueAt(line, x));
        return [...bounds.flatMap((values) => values.filter(isIn)), ...edges.filter((value) => value !== null)];
      });
    const ofClear = found(clear);
    return ofClear.length ? ofClear : found(() => true);
  }

  grid() {
    const { left, right, bottom } = this.box;
    const { height, xLabel } = this.content;
    const group = s("g", { class: "grid", "aria-hidden": "true" });
    for (const { at, text } of this.y.ticks) {
      const y = this.y.pixel(at);
      group.append(s("line", { x1: left, x2: right, y1: y, y2: y, class: at === 0 ? "zero" : null }));
      group.append(s("text", { x: left - 6, y: y + 3.5, "text-anchor": "end" }, text));
    }
    for (const { at, text } of this.x.ticks) {
      const x = this.x.pixel(at);
      group.append(s("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "tick" }));
      group.append(s("text", { x, y: bottom + 17, "text-anchor": "middle" }, text));
    }
    group.append(s("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
    group.append(s("text", { x: right, y: height - 4, "text-anchor": "end" }, xLabel));
    return group;
  }

  /** A box of full height over the part of a range of x that is in view. */
  upright(range, narrowest = 0) {
    const [low, high] = this.view;
    const [x, end] = range.map((one) => this.x.pixel(Math.min(high, Math.max(low, one))));
    const { top, bottom } = this.box;
    return s("rect", { x, width: Math.max(narrowest, end - x), y: top, height: bottom - top });
  }

  /** Upright lines, with the labels that have room. */
  ruleMarks() {
    const { top, bottom } = this.box;
    const group = s("g", { class: "rules", "aria-hidden": "true" });
    let before = -Infinity;
    for (const { at, label, interval } of this.content.rules.filter((rule) => this.inView(rule.at))) {
      const x = this.x.pixel(at);
      if (interval) group.append(this.upright(interval, 1));
      group.append(s("line", { x1: x, x2: x, y1: top, y2: bottom }));
      if (x - before <= 6 + 6 * label.length) continue;
      group.append(s("text", { x, y: top - 6, "text-anchor": "middle" }, label));
      before = x;
    }
    return group;
  }

  /** A line through its points; a single point is a line of no length with round ends. */
  path(line) {
    const { xs, ys, step } = line;
    const first = Math.max(0, countUpTo(xs, this.view[0]) - 1);
    const last = Math.min(xs.length - 1, countUpTo(xs, this.view[1]));
    const below = this.y.domain[0] / 10;
    const height = (value) => this.y.pixel(value > 0 || !this.content.logY ? value : below).toFixed(1);
    const parts = [];
    for (let at = first; at <= last; at += 1) {
      const x = this.x.pixel(xs[at]).toFixed(1);
      if (at > first && step) parts.push(`H${x}V${height(ys[at])}`);
      else parts.push(`${at > first ? "L" : "M"}${x} ${height(ys[at])}`);
    }
    if (xs.length === 1) parts.push("h0");
    return s("path", { d: parts.join(""), class: `line ${colourOf(line)} ${xs.length === 1 ? "dot" : ""}` });
  }

  band(line) {
    const edge = (values) => line.xs.map((x, at) => {
      const y = this.y.pixel(Math.max(values[at], this.y.domain[0]));
      return `${this.x.pixel(x).toFixed(1)} ${y.toFixed(1)}`;
    });
    const around = [...edge(line.band.high), ...edge(line.band.low).reverse()];
    return s("path", { d: `M${around.join("L")}Z`, class: `band ${colourOf(line)}` });
  }

  /** Labels at the right, the largest values first, each at its line's end or as near to it as there is room. */
  directLabels() {
    const { top, bottom, right } = this.box;
    const ends = this.content.lines
      .filter((line) => line.direct)
      .map((line) => ({ line, value: valueAt(line, Math.min(this.view[1], line.xs.at(-1))) }))
      .filter(({ value }) => value !== null);
    ends.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const taken = [];
    return ends.flatMap(({ line, value }) => {
      const end = Math.min(bottom, Math.max(top, this.y.pixel(value)));
      const isFree = (y) => y >= top - 4 && y <= bottom + 4 && taken.every((other) => Math.abs(other - y) > 11.5);
      const y = NUDGES.map((nudge) => end + nudge).find(isFree);
      if (y === undefined) return [];
      taken.push(y);
      return [s("text", { x: right + 5, y: y + 3.5, class: colourOf(line) }, line.label)];
    });
  }

  /** Mark a time with the upright line that the slider moves. */
  setCursor(at) {
    this.cursor = at;
    if (!this.cursorMark) return;
    if (at === null || !this.inView(at)) return this.cursorMark.replaceChildren();
    const x = this.x.pixel(at);
    const { top, bottom } = this.box;
    const triangle = s("path", { d: `M${x - 4} ${bottom + 6}h8l-4 -6z` });
    this.cursorMark.replaceChildren(s("line", { x1: x, x2: x, y1: top, y2: bottom }), triangle);
  }

  handlers() {
    let start = null; // where a drag began
    const place = ({ clientX, clientY }) => {
      const { left, top, width } = this.svg.getBoundingClientRect();
      const ratio = this.width / width;
      const x = (clientX - left) * ratio;
      return [Math.min(this.box.right, Math.max(this.box.left, x)), (clientY - top) * ratio];
    };
    const isDrag = (x) => Math.abs(x - start) >= 6;
    const stop = () => {
      start = null;
      this.brush.toggleAttribute("hidden", true);
    };
    return {
      onpointerdown: (event) => {
        if (event.button) return;
        start = place(event)[0];
        this.svg.setPointerCapture(event.pointerId);
      },
      onpointermove: (event) => {
        const [x, y] = place(event);
        if (start === null) return this.point(x, y);
        this.brush.toggleAttribute("hidden", !isDrag(x));
        this.brush.setAttribute("x", Math.min(x, start));
        this.brush.setAttribute("width", Math.abs(x - start));
        this.leave();
      },
      onpointerup: (event) => {
        if (start === null) return;
        const [x, y] = place(event);
        const range = isDrag(x) ? [start, x].sort((a, b) => a - b).map(this.x.value) : null;
        stop();
        if (range) return this.zoom.set(range);
        this.options.onPick?.(this.x.value(x));
        this.point(x, y);
      },
      onpointercancel: stop,
      onpointerleave: () => this.leave(),
      onkeydown: (event) => {
        const factor = { "+": 2, "=": 2, "-": 0.5, 0: 0 }[event.key];
        if (factor === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        if (factor) this.zoom.by(factor, this.cursor);
        else this.zoom.set(null);
      },
    };
  }

  /** Read the plot at a place: light up the nearest line, and say what it is. */
  point(pixelX, pixelY) {
    const x = this.x.value(pixelX);
    const read = this.content.lines.filter((line) => !line.quiet).map((line) => ({ line, y: valueAt(line, x) }));
    const away = ({ y }) => (y === null ? Infinity : Math.abs(this.y.pixel(y) - pixelY));
    const [{ line, y } = {}] = read.filter((one) => away(one) < REACH).sort((a, b) => away(a) - away(b));
    this.paths.forEach((path, other) => path.classList.toggle("lit", other === line));
    this.svg.classList.toggle("reading", Boolean(line));
    const texts = line ? this.options.tip(x, line, y) : [];
    this.tip.hidden = !texts.length;
    this.tip.replaceChildren(...texts.map((text, index) => h(index ? "span" : "strong", {}, text)));
    const atLeft = pixelX > this.width / 2;
    this.tip.style.left = atLeft ? "auto" : `${pixelX + 14}px`;
    this.tip.style.right = atLeft ? `${this.width - pixelX + 14}px` : "auto";
    this.tip.style.top = `${Math.max(4, Math.min(pixelY - 12, this.content.height - 110))}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.svg.classList.remove("reading");
    this.paths?.forEach((path) => path.classList.remove("lit"));
  }

  /** Once its details are open: each line in numbers. */
  fillData() {
    this.data.querySelectorAll(":scope > :not(summary)").forEach((child) => child.remove());
    if (!this.content || !this.data.open) return;
    const caption = `${this.content.name}: each line in numbers`;
    const numbersOf = (ys) => [ys[0], ys.at(-1), lowest(ys), highest(ys)].map((y) => number(y));
    const rows = this.content.lines.map((line) => [line.name, ...numbersOf(line.ys)]);
    const made = table(caption, ["line", "at the start", "at the end", "smallest", "largest"], rows);
    this.data.append(scrolling(caption, made));
  }
}

/** Plots beside one another. */
export const pair = (...plots) => h("div", { class: "pair" }, plots.map((plot) => plot.figure));
