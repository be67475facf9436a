// A line plot in SVG: drag to zoom, hover to read, click to set the time; keys do the same; its numbers lie beneath it.

import { extent, scale } from "./axes.js";
import { countUpTo, valueAt } from "./curves.js";
import { h, s } from "./dom.js";
import { fillPlotData } from "./plotdata.js";
import { Zoom } from "./state.js";

const HEIGHT = 230;
const NARROWEST = 200;
const MOST_LETTERS = 12;
const LETTER_HEIGHT = 12;
let plotCount = 0;

/** The CSS classes of a line: its shade in the order of learning, and its style. */
export function colourOf({ shade, style = "" }) {
  return shade === undefined ? style : `${shade === null ? "idle" : `shade-${shade}`} ${style}`;
}

/**
 * options: name (for screen readers), title, xLabel, logX(), logY(), floor, height, labelled (letters to leave room for at the right),
 * allLabels (of rules: all or none), key (names above), padX (room at both ends), still (no zoom), zoom (shared, or its own),
 * onPick(x) on a click, tip(x, line) → lines of text.
 * show({lines, rules, greyed, summary}): a line is {label, xs, ys, step, shade, style, direct, quiet, band}; `style` names a CSS class;
 * `quiet` lines are neither picked nor labelled, `unkeyed` ones not named above; `band` {low, high} is shaded.
 * A rule is a thin upright line {at, label, interval}; `greyed` [[from, to], ...] are ranges of x that are shaded and do not set the range of y.
 */
export class Plot {
  constructor(options) {
    this.options = options;
    this.content = { lines: [], rules: [], greyed: [], summary: "" };
    this.cursor = null;
    this.id = `plot-${(plotCount += 1)}`;
    this.zoom = options.zoom ?? new Zoom();
    this.zoom.followers.push(() => this.draw());
    this.build();
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width >= NARROWEST && width !== this.width) this.draw(width);
    }).observe(this.stage);
  }

  build() {
    const { name, title } = this.options;
    this.svg = s("svg", {
      role: "group",
      "aria-roledescription": "plot",
      "aria-label": name,
      "aria-describedby": `${this.id}-summary`,
      tabindex: 0,
    });
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.reset = h("button", { type: "button", class: "reset", hidden: true, onclick: () => this.zoom.set(null) }, "Show all");
    this.stage = h("div", { class: "stage" }, this.svg, this.tip);
    this.summary = h("figcaption", { id: `${this.id}-summary` });
    this.data = h("details", { class: "data", ontoggle: () => fillPlotData(this) }, h("summary", {}, "Data"));
    this.heading = h("h4", {}, title);
    const heading = h("div", { class: "plot-title" }, this.heading, this.reset);
    this.legend = h("div", { class: "plot-key", "aria-hidden": "true", hidden: !this.options.key });
    this.figure = h("figure", { class: "plot" }, heading, this.legend, this.stage, this.summary, this.data);
    this.listen();
  }

  /** Another name and title, where the plot shows another quantity now. */
  rename(name, title) {
    this.options.name = name;
    this.svg.setAttribute("aria-label", name);
    this.heading.replaceChildren(...[title].flat());
  }

  show(content) {
    this.content = { rules: [], greyed: [], summary: "", ...content };
    this.summary.replaceChildren(this.content.summary);
    this.legend.replaceChildren(...this.content.lines.filter((line) => !line.unkeyed).map((line) => this.keyEntry(line)));
    const ends = this.content.lines.flatMap(({ xs }) => (xs.length ? [xs[0], xs[xs.length - 1]] : []));
    const low = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
    if (ends.length) this.own = this.options.padX ? extent(ends, true) : [low(ends), -low(ends.map((end) => -end))];
    if (!this.options.zoom && this.own) this.zoom.full = this.own;
    this.data.querySelectorAll(":scope > :not(summary)").forEach((child) => child.remove());
    fillPlotData(this);
    this.draw();
  }

  keyEntry(line) {
    const swatch = s("svg", { viewBox: "0 0 24 8" }, s("path", { d: "M0 4H24", class: `line ${colourOf(line)}` }));
    return h("span", {}, swatch, line.name);
  }

  /** The range of x in view. */
  get view() {
    const range = this.zoom.range ?? (this.options.zoom ? this.zoom.full : this.own) ?? [0, 1];
    return range[1] > range[0] ? range : [range[0], range[0] + 1];
  }

  draw(width = this.width) {
    if (!width) return;
    this.width = width;
    this.stage.hidden = !this.content.lines.length;
    if (this.stage.hidden) return;
    const narrow = width < 480;
    const height = this.options.height ?? HEIGHT;
    const logY = this.options.logY?.() ?? false;
    const written = this.content.lines.filter((line) => line.direct).map((line) => line.label.length);
    const letters = Math.min(MOST_LETTERS, Math.max(this.options.labelled ?? 0, ...written));
    const box = { right: width - (letters ? 12 + 6.6 * letters : 12), top: 18, bottom: height - 34 };
    const clear = this.content.lines.flatMap((line) => this.valuesInView(line, (x) => !this.isGreyed(x)));
    const inView = clear.length ? clear : this.content.lines.flatMap((line) => this.valuesInView(line));
    this.y = scale(extent(inView, logY, this.options.floor), [box.bottom, box.top], logY, 5);
    box.left = Math.max(narrow ? 40 : 48, ...this.y.ticks.map(({ text }) => 12 + 6.6 * text.length));
    this.x = scale(this.view, [box.left, box.right], this.options.logX?.() ?? false, (box.right - box.left) / 90);
    this.box = box;
    this.reset.hidden = !this.zoom.range;

    const clip = `${this.id}-clip`;
    const area = { x: box.left, y: box.top - 4, width: box.right - box.left, height: box.bottom - box.top + 8 };
    this.paths = new Map(this.content.lines.map((line) => [line, this.path(line)]));
    this.brush = s("rect", { class: "brush", y: box.top, height: box.bottom - box.top, hidden: true });
    this.cursorMark = s("g", { class: "cursor" });
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(
      s("clipPath", { id: clip }, s("rect", area)),
      this.greyedRanges(),
      this.grid(height, narrow),
      this.ruleMarks(),
      s("g", { class: "bands", "clip-path": `url(#${clip})` }, this.content.lines.filter((line) => line.band).map((line) => this.band(line))),
      s("g", { class: "lines", "clip-path": `url(#${clip})` }, this.pathsOf((line) => line.xs.length > 1)),
      s("g", { class: "lines" }, this.pathsOf((line) => line.xs.length === 1 && line.xs[0] >= this.view[0] && line.xs[0] <= this.view[1])),
      s("g", { class: "labels" }, this.directLabels()),
      this.cursorMark,
      this.brush,
    );
    this.setCursor(this.cursor);
  }

  /** A line’s values that set the range of y: those in view, where `counts(x)`. What is greyed may leave the frame. */
  valuesInView({ xs, ys, step, band }, counts = () => true) {
    const [low, high] = this.view;
    const all = band ? [ys, band.low, band.high] : [ys];
    const inside = all.flatMap((values) => Array.from(values).filter((_, index) => xs[index] >= low && xs[index] <= high && counts(xs[index])));
    const edges = [low, high].filter(counts).map((x) => valueAt({ xs, ys, step }, x)).filter((value) => value !== null);
    return [...inside, ...edges];
  }

  isGreyed(x) {
    return this.content.greyed.some(([from, to]) => x >= from && x < to);
  }

  grid(height, narrow) {
    const { left, right, top, bottom } = this.box;
    const group = s("g", { class: "grid", "aria-hidden": "true" });
    for (const { at, text } of this.y.ticks) {
      const y = this.y.pixel(at);
      if (y < top - 1 || y > bottom + 1) continue;
      group.append(s("line", { x1: left, x2: right, y1: y, y2: y, class: at === 0 ? "zero" : null }));
      group.append(s("text", { x: left - 6, y: y + 3.5, "text-anchor": "end" }, text));
    }
    for (const { at, text } of this.x.ticks) {
      const x = this.x.pixel(at);
      group.append(s("line", { x1: x, x2: x, y1: bottom, y2: bottom + 4, class: "tick" }));
      group.append(s("text", { x, y: bottom + 17, "text-anchor": "middle" }, text));
    }
    group.append(s("line", { x1: left, x2: right, y1: bottom, y2: bottom, class: "axis" }));
    const label = narrow ? (this.options.xLabelShort ?? this.options.xLabel) : this.options.xLabel;
    group.append(s("text", { x: right, y: height - 4, "text-anchor": "end", class: "x-label" }, label));
    return group;
  }

  greyedRanges() {
    const inside = (x) => this.x.pixel(Math.min(this.view[1], Math.max(this.view[0], x)));
    const rects = this.content.greyed.map((range) => {
      const [x, end] = range.map(inside);
      return s("rect", { x, width: Math.max(0, end - x), y: this.box.top, height: this.box.bottom - this.box.top });
    });
    return s("g", { class: "greyed", "aria-hidden": "true" }, rects);
  }

  ruleMarks() {
    const group = s("g", { class: "rules", "aria-hidden": "true" });
    const inView = this.content.rules.filter(({ at }) => at >= this.view[0] && at <= this.view[1]);
    const roomy = (rule, index) => index === 0 || this.x.pixel(rule.at) - this.x.pixel(inView[index - 1].at) > 6 + 6 * rule.label.length;
    const all = inView.every(roomy);
    let lastLabel = -Infinity;
    for (const { at, label, interval } of inView) {
      const x = this.x.pixel(at);
      if (interval) {
        const [from, to] = interval.map((end) => this.x.pixel(Math.min(this.view[1], Math.max(this.view[0], end))));
        group.append(s("rect", { x: from, width: Math.max(1, to - from), y: this.box.top, height: this.box.bottom - this.box.top }));
      }
      group.append(s("line", { x1: x, x2: x, y1: this.box.top, y2: this.box.bottom }));
      if (this.options.allLabels ? all : x - lastLabel > 6 + 6 * label.length) {
        group.append(s("text", { x, y: this.box.top - 6, "text-anchor": "middle" }, label));
        lastLabel = x;
      }
    }
    return group;
  }

  pathsOf(drawn) {
    return this.content.lines.filter(drawn).map((line) => this.paths.get(line));
  }

  /** A line through its points; of a single one a dot: no length, but round ends. */
  path(line) {
    const { xs, ys, step } = line;
    const first = Math.max(0, countUpTo(xs, this.view[0]) - 1);
    const last = Math.min(xs.length - 1, countUpTo(xs, this.view[1]));
    const floor = this.y.domain[0];
    const height = (value) => this.y.pixel(value > 0 || !this.options.logY?.() ? value : floor / 10).toFixed(1);
    const parts = [];
    for (let i = first; i <= last; i += 1) {
      const x = this.x.pixel(xs[i]).toFixed(1);
      if (i > first && step) parts.push(`H${x}V${height(ys[i])}`);
      else parts.push(`${i > first ? "L" : "M"}${x} ${height(ys[i])}`);
    }
    if (xs.length === 1) parts.push("h0");
    return s("path", { d: parts.join(""), class: `line ${colourOf(line)} ${xs.length === 1 ? "dot" : ""}` });
  }

  /** The shaded band of a line: there and back again. */
  band(line) {
    const { xs, band } = line;
    const floor = this.y.domain[0];
    const place = (x, y) => `${this.x.pixel(x).toFixed(1)} ${this.y.pixel(Math.max(y, floor)).toFixed(1)}`;
    const there = Array.from(xs, (x, index) => place(x, band.high[index]));
    const back = Array.from(xs, (x, index) => place(x, band.low[index])).reverse();
    return s("path", { d: `M${[...there, ...back].join("L")}Z`, class: `band ${colourOf(line)}` });
  }

  /** Names at the right end, the largest first, each beside its line or as near to it as there is room. */
  directLabels() {
    const taken = [];
    const named = this.content.lines.filter((line) => line.direct);
    const ends = named
      .map((line) => ({ line, value: valueAt(line, Math.min(this.view[1], line.xs[line.xs.length - 1])) }))
      .filter(({ value }) => value !== null);
    ends.sort((a, b) => (b.line.weight ?? Math.abs(b.value)) - (a.line.weight ?? Math.abs(a.value)));
    const texts = [];
    for (const { line, value } of ends) {
      const y = this.freePlace(this.y.pixel(value), taken);
      if (y === null) continue;
      taken.push(y);
      texts.push(s("text", { x: this.box.right + 5, y: y + 3.5, class: colourOf(line) }, line.label));
    }
    return texts;
  }

  /** The height nearest to `wanted` at which a name overlaps none of those taken; null where that is too far from its line. */
  freePlace(wanted, taken) {
    const { top, bottom } = this.box;
    const inside = Math.min(bottom, Math.max(top, wanted));
    const away = (y) => Math.abs(y - inside);
    const fits = (y) => y >= top - 4 && y <= bottom + 4 && away(y) <= 1.5 * LETTER_HEIGHT;
    const clear = (y) => taken.every((other) => Math.abs(other - y) > LETTER_HEIGHT - 0.5);
    const places = [inside, ...taken.flatMap((other) => [other - LETTER_HEIGHT, other + LETTER_HEIGHT])];
    return places.filter((y) => fits(y) && clear(y)).reduce((best, y) => (best === null || away(y) < away(best) ? y : best), null);
  }

  /** Mark a time: the upright line that the slider moves. */
  setCursor(at) {
    this.cursor = at;
    if (!this.cursorMark) return;
    const hidden = at === null || at < this.view[0] || at > this.view[1];
    if (hidden) return this.cursorMark.replaceChildren();
    const x = this.x.pixel(at);
    const { top, bottom } = this.box;
    this.cursorMark.replaceChildren(
      s("line", { x1: x, x2: x, y1: top, y2: bottom }),
      s("path", { d: `M${x - 4} ${bottom + 6}h8l-4 -6z` }),
    );
  }

  /** The line nearest to a place, within reach of the pointer. */
  nearest(x, pixelY) {
    let best = null;
    let distance = 36;
    for (const line of this.content.lines) {
      if (line.quiet) continue;
      const value = valueAt(line, x);
      const away = value === null ? Infinity : Math.abs(this.y.pixel(value) - pixelY);
      if (away < distance) [best, distance] = [line, away];
    }
    return best;
  }

  listen() {
    let start = null;
    const place = (event) => {
      const bounds = this.svg.getBoundingClientRect();
      const ratio = this.width / bounds.width;
      return [(event.clientX - bounds.left) * ratio, (event.clientY - bounds.top) * ratio];
    };
    const within = (pixel) => Math.min(this.box.right, Math.max(this.box.left, pixel));
    this.svg.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      start = within(place(event)[0]);
      this.svg.setPointerCapture(event.pointerId);
    });
    this.svg.addEventListener("pointermove", (event) => {
      const [pixelX, pixelY] = place(event);
      if (start === null) return this.point(within(pixelX), pixelY);
      const [low, high] = [start, within(pixelX)].sort((a, b) => a - b);
      this.brush.toggleAttribute("hidden", high - low < 6 || this.options.still);
      this.brush.setAttribute("x", low);
      this.brush.setAttribute("width", high - low);
      this.leave();
    });
    this.svg.addEventListener("pointerup", (event) => {
      if (start === null) return;
      const [pixelX, pixelY] = place(event);
      const [low, high] = [start, within(pixelX)].sort((a, b) => a - b);
      start = null;
      this.brush.toggleAttribute("hidden", true);
      if (high - low >= 6 && !this.options.still) return this.zoom.set([this.x.value(low), this.x.value(high)]);
      this.options.onPick?.(this.x.value(within(pixelX)));
      this.point(within(pixelX), pixelY);
    });
    this.svg.addEventListener("pointercancel", () => {
      start = null;
      this.brush.toggleAttribute("hidden", true);
    });
    this.svg.addEventListener("pointerleave", () => this.leave());
    this.svg.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.options.still) return;
    const actions = {
      "+": () => this.zoom.by(2, this.cursor),
      "=": () => this.zoom.by(2, this.cursor),
      "-": () => this.zoom.by(0.5, this.cursor),
      0: () => this.zoom.set(null),
      Escape: () => this.zoom.set(null),
      ArrowLeft: () => this.zoom.pan(-0.2),
      ArrowRight: () => this.zoom.pan(0.2),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  /** Read the plot at a place: light up the nearest line and say what it is. */
  point(pixelX, pixelY) {
    const x = this.x.value(pixelX);
    const line = this.nearest(x, pixelY);
    this.paths.forEach((path, other) => path.classList.toggle("lit", line !== null && (other === line || other.twin === line)));
    this.svg.classList.toggle("reading", line !== null);
    const texts = this.options.tip?.(x, line) ?? [];
    this.tip.hidden = !texts.length;
    if (!texts.length) return;
    this.tip.replaceChildren(...texts.map((text, index) => h(index ? "span" : "strong", {}, text)));
    const left = pixelX > this.width / 2;
    this.tip.style.left = left ? "auto" : `${pixelX + 14}px`;
    this.tip.style.right = left ? `${this.width - pixelX + 14}px` : "auto";
    this.tip.style.top = `${Math.max(4, Math.min(pixelY - 12, (this.options.height ?? HEIGHT) - 110))}px`;
  }

  leave() {
    this.tip.hidden = true;
    this.svg.classList.remove("reading");
    this.paths?.forEach((path) => path.classList.remove("lit"));
  }
}
