// Curves as the page carries them, and what they say at a time.
// A curve is kept as [index, value, index, value, …] with indices into its times: only the points a straight line misses.

/** {xs, ys} of a kept curve. */
export function unpack(times, kept) {
  const xs = new Float64Array(kept.length / 2);
  const ys = new Float64Array(kept.length / 2);
  for (let i = 0; i < xs.length; i += 1) {
    xs[i] = times[kept[2 * i]];
    ys[i] = kept[2 * i + 1];
  }
  return { xs, ys };
}

/** The number of entries of a sorted list that are at most x. */
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

/** The value of a curve at x: on the line between its points, or on the step before; null outside. */
export function valueAt(curve, x) {
  const { xs, ys } = curve;
  if (!xs.length || x < xs[0] || x > xs[xs.length - 1]) return null;
  const after = countUpTo(xs, x);
  if (after === xs.length || curve.step) return ys[after - 1];
  const share = (x - xs[after - 1]) / (xs[after] - xs[after - 1]);
  return ys[after - 1] + share * (ys[after] - ys[after - 1]);
}
