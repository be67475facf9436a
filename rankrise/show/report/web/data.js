// The page's data, lines {xs, ys} through it, and scales from values to pixels. A value that is not known is NaN.

import { fixed, number, scaleText } from "./dom.js";

/** What Python embedded; arrays travel as base64 (arrays.py). */
export function payload() {
  const revive = (_, value) => (value?.f32 === undefined ? value : unpacked(value));
  return JSON.parse(document.getElementById("payload").textContent, revive);
}

function unpacked({ f32, shape }) {
  const { buffer } = Uint8Array.from(atob(f32), (letter) => letter.charCodeAt(0));
  let values = Array.from(new Float32Array(buffer));
  for (const size of shape.slice(1).reverse()) {
    const rows = [];
    for (let at = 0; at < values.length; at += size) rows.push(values.slice(at, at + size));
    values = rows;
  }
  return values;
}

/** The line through the known points. */
export function known(xs, ys) {
  const places = [...ys.keys()].filter((place) => Number.isFinite(ys[place]));
  return { xs: places.map((place) => xs[place]), ys: places.map((place) => ys[place]) };
}

/** How many entries of a sorted list are at most x. */
export const countUpTo = (sorted, x) => sorted.findLastIndex((value) => value <= x) + 1;

/** The value of a line at x: between its points, or at the point before if it goes in steps; null outside. */
export function valueAt({ xs, ys, step }, x) {
  if (!xs.length || x < xs[0] || x > xs.at(-1)) return null;
  const after = countUpTo(xs, x);
  if (after === xs.length || step) return ys[after - 1];
  const share = (x - xs[after - 1]) / (xs[after] - xs[after - 1]);
  return ys[after - 1] + share * (ys[after] - ys[after - 1]);
}

// Not Math.min(...values): a spread of many thousand arguments overflows the stack.
export const lowest = (values) => values.reduce((a, b) => Math.min(a, b), Infinity);
export const highest = (values) => values.reduce((a, b) => Math.max(a, b), -Infinity);

/** The mean of the known values. */
export function mean(values) {
  const found = values.filter(Number.isFinite);
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : NaN;
}

/** Shade 0 to 9 for the lines of a plot in their order. */
export const spread = (index, count) => (count < 2 ? 0 : Math.round((9 * index) / (count - 1)));

/** A linear or logarithmic map from an interval of values to one of pixels, with about `count` ticks. */
export function scale(domain, [from, to], logarithmic, count) {
  const bend = logarithmic ? Math.log10 : (value) => value;
  const [low, high] = domain.map(bend);
  const unbent = (pixel) => low + ((pixel - from) / (to - from)) * (high - low);
  return {
    domain,
    pixel: (value) => from + ((bend(value) - low) / (high - low)) * (to - from),
    value: (pixel) => (logarithmic ? 10 ** unbent(pixel) : unbent(pixel)),
    ticks: (logarithmic ? decades : roundTicks)(low, high, Math.max(1, count)),
  };
}

function roundTicks(low, high, count) {
  const rough = (high - low) / count;
  const magnitude = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * magnitude).find((size) => size >= rough * 0.999);
  const decimals = Math.min(8, Math.max(0, -Math.floor(Math.log10(step) + 1e-9)));
  const ticks = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) {
    ticks.push({ at: k * step, text: fixed(k ? k * step : 0, decimals) });
  }
  return ticks;
}

/** Powers of ten; within two decades also 2 and 5 times them. */
function decades(low, high, count) {
  const every = Math.max(1, Math.ceil((high - low) / count));
  const ticks = [];
  for (let k = Math.floor(low); k <= high + 1e-9; k += 1) {
    for (const factor of high - low < 1.99 ? [1, 2, 5] : [1]) {
      const place = k + Math.log10(factor);
      if (place < low - 1e-9 || place > high + 1e-9 || (factor === 1 && k % every)) continue;
      ticks.push({ at: 10 ** place, text: k >= -2 && k <= 3 ? number(10 ** place) : scaleText(place) });
    }
  }
  return ticks;
}

/** The smallest interval around some values, with a little room, never empty; from `floor` on, if one is given. */
export function extent(values, logarithmic, floor) {
  const found = values.filter((value) => Number.isFinite(value) && (!logarithmic || value > 0));
  if (!found.length) return logarithmic ? [0.1, 1] : [0, 1];
  const high = highest(found);
  let low = lowest(found);
  if (logarithmic) {
    low = Math.max(low, floor ?? high * 1e-12);
    return high > low * 1.05 ? [low / 1.15, high * 1.15] : [low / 2, high * 2];
  }
  low = Math.min(low, floor ?? low);
  const room = high > low ? 0.04 * (high - low) : 0.5 * (Math.abs(high) || 1);
  return [low === floor ? low : low - room, high + room];
}
