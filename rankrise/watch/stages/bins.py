"""A curve of any length as a few hundred averages, and how noisy each of them is."""

import numpy as np

BINS = 200
BLOCKS = (1, 2, 4)
"""Lengths of the blocks over which noise is measured, in points."""


def binned(times: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Times, averages and variances (m,) each, of at most 2 `BINS` bins of a curve at increasing times (n,).

    Edges are evenly spaced in log time, in which stages come, and in time, so that late ones are resolved as
    well. Where points are fewer than bins, each is its own.
    """
    first, last = times[0], times[-1]
    edges = np.union1d(np.geomspace(first, last, BINS), np.linspace(first, last, BINS))
    _, which = np.unique(np.searchsorted(edges, times, side="right"), return_inverse=True)
    counts = np.bincount(which)
    places = np.exp(np.bincount(which, np.log(times)) / counts)
    averages = np.bincount(which, values) / counts
    noise = max(_noise(times, values, np.ones(len(times))), _noise(places, averages, counts))
    return places, averages, noise / counts


def _noise(times: np.ndarray, values: np.ndarray, counts: np.ndarray) -> float:
    """The variance of the noise of one point, as it shows in averages over blocks; the largest found.

    Noise that is correlated from point to point shows less in neighbours and more in averages than
    independent noise would, and steps are to be told from such wandering as well.
    """
    found = 0.0
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
        found = max(found, _roughness(place, average, 1 / total))
    return found


def _roughness(places: np.ndarray, values: np.ndarray, variances: np.ndarray) -> float:
    """By how much points miss the straight line between their neighbours: the robust variance of it, in
    units of what `variances` would give. Steps touch few points, and a smooth curve is nearly straight.
    """
    part = (places[2:] - places[1:-1]) / (places[2:] - places[:-2])
    misses = values[1:-1] - part * values[:-2] - (1 - part) * values[2:]
    expected = variances[1:-1] + part**2 * variances[:-2] + (1 - part) ** 2 * variances[2:]
    return float((np.median(np.abs(misses) / np.sqrt(expected)) / 0.6745) ** 2)
