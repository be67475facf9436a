"""A curve of any length as a few hundred averages, and how noisy each of them is."""

import numpy as np

BINS = 200
# Lengths of the blocks over which noise is measured, in points.
BLOCKS = (1, 2, 4)
# The median and the 90 % quantile of the size of a standard normal number.
MEDIAN, UPPER = 0.6745, 1.645
# Noise is measured over at least this many of them around a point: it changes in the course of training.
NEIGHBOURS = 40


def binned(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, averages and variances (m,) of at most 2 `BINS` bins of a curve at increasing times (n,).

    Edges are evenly spaced in log time, in which stages come, and in time, so that late ones are resolved as
    well. Where points are fewer than bins, each is its own.
    """
    first, last = times[0], times[-1]
    edges = np.union1d(np.geomspace(first, last, BINS), np.linspace(first, last, BINS))
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
    """The variance of the noise of one point at `places` (m,), as averages over blocks show it; the largest.

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
        if local:
            spread = np.maximum(spread, _around(sizes))
        found = np.maximum(found, np.interp(np.log(places), place[1:-1], spread**2))
    return found


def _misses(places: np.ndarray, values: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """By how much points (n,) miss the straight line between their neighbours (n - 2,), in units of what
    `variances` would give. Steps touch few points, and a smooth curve is nearly straight."""
    part = (places[2:] - places[1:-1]) / (places[2:] - places[:-2])
    misses = values[1:-1] - part * values[:-2] - (1 - part) * values[2:]
    expected = variances[1:-1] + part**2 * variances[:-2] + (1 - part) ** 2 * variances[2:]
    return np.abs(misses) / np.sqrt(expected)


def _around(sizes: np.ndarray) -> np.ndarray:
    """The standard deviation around each point, from quantiles: the upper one sees heavy tails."""
    width = min(len(sizes), max(NEIGHBOURS, len(sizes) // 8))
    starts = np.unique(np.linspace(0, len(sizes) - width, BINS).astype(int))
    windows = np.lib.stride_tricks.sliding_window_view(sizes, width)[starts]
    spread = (np.quantile(windows, (0.5, 0.9), axis=1) / [[MEDIAN], [UPPER]]).max(0)
    return np.interp(np.arange(len(sizes)), starts + (width - 1) / 2, spread)


def typical_noise(values: np.ndarray) -> float:
    """The standard deviation of a curve's noise where it is noisy, from how far points miss their neighbours.

    >>> round(typical_noise(np.arange(100.0)), 6)
    0.0
    >>> 0.9 < typical_noise(np.random.default_rng(0).standard_normal(10000)) < 1.1
    True
    """
    misses = _misses(np.arange(float(len(values))), values, np.ones(len(values)))
    return float(np.quantile(misses, 0.9) / UPPER)
