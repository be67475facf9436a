"""Draws of the noiseless curve beside all ways to cut it into pieces, one by one."""

import itertools

import numpy as np
from scipy.stats import multivariate_normal

from rankrise.watch._stages.posterior import PIECES, draw_curves


def test_draws_are_of_the_exact_posterior() -> None:
    """For seven values: the mean and the variance of the curve, summed over all 64 cuts."""
    source = np.random.default_rng(3)
    places = np.sort(source.uniform(0, 2, 7))
    variances = source.uniform(0.02, 0.1, 7)
    values = np.where(places < 1, 0.0, 1.0) + np.sqrt(variances) * source.standard_normal(7)
    stop, spread, middle = min(0.5, PIECES / 7), np.ptp(values) ** 2, np.median(values)

    weights, means, squares = [], [], []
    for cuts in itertools.product([False, True], repeat=6):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), 7]
        weight, mean, square = stop ** sum(cuts) * (1 - stop) ** (6 - sum(cuts)), [], []
        for start, end in itertools.pairwise(edges):
            inside = slice(start, end)
            precision = 1 / variances[inside]
            centred = places[inside] - (precision * places[inside]).sum() / precision.sum()
            width = np.sqrt((precision * centred**2).sum() / precision.sum())
            design = np.stack([np.ones(end - start), centred / width] if end - start > 1 else [np.ones(1)], 1)
            curve = spread * design @ design.T
            data = curve + np.diag(variances[inside])
            weight *= multivariate_normal.pdf(values[inside] - middle, np.zeros(end - start), data)
            gain = curve @ np.linalg.inv(data)
            expected = gain @ (values[inside] - middle)
            mean += list(expected)
            square += list(np.diag(curve - gain @ curve) + expected**2)
        weights.append(weight)
        means.append(mean)
        squares.append(square)
    part = np.array(weights) / np.sum(weights)
    mean = part @ np.array(means)
    std = np.sqrt(part @ np.array(squares) - mean**2)

    draws = draw_curves(places, values, variances, draws=20000, seed=0)
    assert np.allclose(draws.mean(0), mean + middle, atol=5 * std.max() / np.sqrt(20000))
    assert np.allclose(draws.std(0), std, rtol=0.05)
