"""A noisy curve as averages over bins, and draws of the noiseless curve behind them."""

import numpy as np

BINS = 200
# Lengths of the blocks over which noise is measured, in points.
BLOCKS = (1, 2, 4)
# The median and the 90 % quantile of the size of a standard normal number.
MEDIAN, UPPER = 0.6745, 1.645
# Noise is measured over at least this many points around each: it changes in the course of training.
NEIGHBOURS = 40
# Expected pieces of a curve, a priori.
PIECES = 10.0


def binned(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, averages and variances (m,) of at most 2 `BINS` bins of a curve at increasing times (n,).

    Edges are evenly spaced in log time, in which stages come, and in time, so that late ones are resolved as
    well. Where points are fewer than bins, each is its own.
    """
    ends = times[0], times[-1]
    edges = np.union1d(np.geomspace(*ends, BINS), np.linspace(*ends, BINS))
    _, which = np.unique(np.searchsorted(edges, times, side="right"), return_inverse=True)
    counts = np.bincount(which)
    places = np.exp(np.bincount(which, np.log(times)) / counts)
    averages = np.bincount(which, values) / counts
    noise = np.maximum(
        _noise(places, places, averages, counts),
        _noise(places, times, values, np.ones(len(times)), local=True),
    )
    return places, averages, noise / counts


def _noise(
    places: np.ndarray, times: np.ndarray, values: np.ndarray, counts: np.ndarray, local: bool = False
) -> np.ndarray:
    """Variance of the noise of one point at `places` (m,): the largest that averages over blocks show.

    Correlated noise shows less in neighbours and more in averages than independent noise would, and steps
    must stand out from such wandering as well.
    """
    found = np.zeros(len(places))
    for length in BLOCKS:
        blocks = len(times) // length
        if blocks < 12:
            break
        weights = counts[: blocks * length].reshape(blocks, length)
        total = weights.sum(1)
        place, average = (
            (column[: blocks * length].reshape(blocks, length) * weights).sum(1) / total
            for column in (np.log(times), values)
        )
        sizes = _misses(place, average, 1 / total)
        spread = np.full(len(sizes), np.median(sizes) / MEDIAN)
        if local:  # around each point, by the median or the upper quantile, which sees heavy tails
            width = min(len(sizes), max(NEIGHBOURS, len(sizes) // 8))
            starts = np.unique(np.linspace(0, len(sizes) - width, BINS).astype(int))
            windows = np.lib.stride_tricks.sliding_window_view(sizes, width)[starts]
            around = (np.quantile(windows, (0.5, 0.9), axis=1) / [[MEDIAN], [UPPER]]).max(0)
            spread = np.maximum(spread, np.interp(np.arange(len(sizes)), starts + (width - 1) / 2, around))
        found = np.maximum(found, np.interp(np.log(places), place[1:-1], spread**2))
    return found


def _misses(places: np.ndarray, values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """By how much points (n,) miss the straight line between their neighbours (n - 2,), in units of what
    `variances` would give. Steps touch few points, and a smooth curve is nearly straight."""
    part = (places[2:] - places[1:-1]) / (places[2:] - places[:-2])
    misses = values[1:-1] - part * values[:-2] - (1 - part) * values[2:]
    expected = variances[1:-1] + part**2 * variances[:-2] + (1 - part) ** 2 * variances[2:]
    return np.abs(misses) / np.sqrt(expected)


def typical_noise(values: np.ndarray) -> float:
    """Standard deviation of a curve's noise where it is noisy, from how far points miss their neighbours."""
    misses = _misses(np.arange(float(len(values))), values, np.ones(len(values)))
    return float(np.quantile(misses, 0.9) / UPPER)


def draw_curves(places: np.ndarray, values: np.ndarray, variances: np.ndarray, draws: int) -> np.ndarray:
    """Draws [draws, n] of the curve behind `values` (n,) at increasing `places` (n,) under noise of
    `variances` (n,).

    The curve is made of straight pieces, independent of one another. The filter over the beginnings of the
    last piece is exact, and so are draws from the posterior: no Markov chain, nothing to tune (P. Fearnhead,
    "Exact and efficient Bayesian inference for multiple changepoint problems", Statistics and Computing 16,
    2006).
    """
    count, source = len(places), np.random.default_rng(0)
    middle, spread = np.median(values), max(float(np.ptp(values)), 1e-300) ** 2
    stop = min(0.5, PIECES / count)

    # The weighted regression of every piece [start, end) at once, at [start, end - 1]: weight, centre, width,
    # level, tilt (the change over a width) and misfit. Level and tilt are normal with variance `spread`.
    x, y = places - places.mean(), values - middle
    sums = np.cumsum(1 / variances * np.stack([np.ones(count), x, x**2, y, x * y, y**2]), axis=1)
    sums = np.concatenate([np.zeros((6, 1)), sums], axis=1)
    weight, sum_x, sum_xx, sum_y, sum_xy, sum_yy = sums[:, None, 1:] - sums[:, :-1, None]
    weight = np.where(np.tri(count, k=-1, dtype=bool), 1.0, weight)
    centre, level = sum_x / weight, sum_y / weight
    width = np.sqrt(np.maximum(sum_xx / weight - centre**2, 0))
    flat = width <= 1e-6 * (1 + abs(centre))  # one point, up to rounding
    tilt = np.where(flat, 0.0, (sum_xy / weight - centre * level) / np.where(flat, 1.0, width))
    misfit = np.maximum(sum_yy - weight * (level**2 + tilt**2), 0)
    total, shrink = 1 / weight + spread, np.log1p(weight * spread)
    evidence = -0.5 * (misfit + level**2 / total + shrink + np.where(flat, 0.0, tilt**2 / total + shrink))

    # after[i]: log of the probability of all values from i on, if a piece begins at i.
    after = np.zeros(count + 1)
    choices: list[np.ndarray] = [np.zeros(0)] * count
    for start in range(count - 1, -1, -1):
        likely = evidence[start, start:] + np.arange(count - start) * np.log1p(-stop)
        likely[:-1] += np.log(stop) + after[start + 1 : count]
        top = likely.max()
        weights = np.exp(likely - top)
        after[start] = top + np.log(weights.sum())
        choices[start] = np.cumsum(weights) / weights.sum()

    share = spread / total
    error = np.sqrt(share / weight)
    curves = np.empty((draws, count))
    for curve in curves:
        start = 0
        while start < count:
            end = min(start + 1 + int(np.searchsorted(choices[start], source.random())), count)
            piece = start, end - 1
            curve[start:end] = level[piece] * share[piece] + error[piece] * source.standard_normal()
            if not flat[piece]:
                slope = (tilt[piece] * share[piece] + error[piece] * source.standard_normal()) / width[piece]
                curve[start:end] += slope * (x[start:end] - centre[piece])
            start = end
    return curves + middle
