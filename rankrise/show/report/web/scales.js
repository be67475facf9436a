// From values to pixels and back, with ticks.

import { fixed, number, power } from "./dom.js";

/** A linear or logarithmic map from an interval of values to one of pixels, with about `count` ticks. */
export function scale(domain, pixels, logarithmic, count) {
  const bend = logarithmic ? Math.log10 : (value) => value;
  const unbend = logarithmic ? (value) => 10 ** value : (value) => value;
  const [low, high] = domain.map(bend);
  const [from, to] = pixels;
  return {
    domain,
    pixel: (value) => from + ((bend(value) - low) / (high - low)) * (to - from),
    value: (pixel) => unbend(low + ((pixel - from) / (to - from)) * (high - low)),
    ticks: logarithmic ? decades(low, high, count) : roundTicks(domain, count),
  };
}

function roundTicks([low, high], count) {
  const rough = (high - low) / Math.max(1, count);
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
  const every = Math.max(1, Math.ceil((high - low) / Math.max(1, count)));
  const ticks = [];
  for (let k = Math.floor(low); k <= Math.ceil(high); k += 1) {
    for (const factor of high - low < 1.99 ? [1, 2, 5] : [1]) {
      const place = k + Math.log10(factor);
      if (place < low - 1e-9 || place > high + 1e-9 || (factor === 1 && k % every)) continue;
      const at = factor * 10 ** k;
      const far = factor === 1 ? power(k) : `${factor}·${power(k)}`;
      ticks.push({ at, text: k >= -2 && k <= 3 ? number(at) : far });
    }
  }
  return ticks;
}

/** The smallest interval around some values, with a little room, never empty; from `floor` on, if one is given. */
export function extent(values, logarithmic, floor) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    if (!Number.isFinite(value) || (logarithmic && value <= 0)) continue;
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (low > high) return logarithmic ? [0.1, 1] : [0, 1];
  if (logarithmic) {
    low = Math.max(low, floor ?? high * 1e-12);
    return high > low * 1.05 ? [low / 1.15, high * 1.15] : [low / 2, high * 2];
  }
  if (floor !== undefined) low = Math.min(low, floor);
  const room = high > low ? 0.04 * (high - low) : 0.5 * (Math.abs(high) || 1);
  return [low === floor ? low : low - room, high + room];
}
