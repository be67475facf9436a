// The page's data, and lines {xs, ys} through it. A value that is not known is NaN.

/** What Python embedded; arrays travel as base64 (arrays.py). */
export function payload() {
  const revive = (_, value) => (value?.f32 ?? value?.u16) === undefined ? value : unpacked(value);
  return JSON.parse(document.getElementById("payload").textContent, revive);
}

function unpacked({ f32, u16, shape }) {
  const { buffer } = Uint8Array.from(atob(f32 ?? u16), (letter) => letter.charCodeAt(0));
  let values = Array.from(f32 === undefined ? new Uint16Array(buffer) : new Float32Array(buffer));
  for (const size of shape.slice(1).reverse()) {
    const rows = [];
    for (let at = 0; at < values.length; at += size) rows.push(values.slice(at, at + size));
    values = rows;
  }
  return values;
}

/** The line through the known points. */
export function known(xs, ys) {
  const places = ys.map((_, place) => place).filter((place) => Number.isFinite(ys[place]));
  return { xs: places.map((place) => xs[place]), ys: places.map((place) => ys[place]) };
}

/** How many entries of a sorted list are at most x. */
export function countUpTo(sorted, x) {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= x) low = middle + 1;
    else high = middle;
  }
  return low;
}

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
  const found = values.filter((value) => Number.isFinite(value));
  return found.length ? found.reduce((sum, value) => sum + value, 0) / found.length : NaN;
}

/** Shade 0 to 9 for the lines of a plot in their order. */
export function spread(index, count) {
  return count < 2 ? 0 : Math.round((9 * index) / (count - 1));
}
