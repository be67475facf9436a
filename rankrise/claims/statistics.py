"""Statistics over heads: bounds by resampling, and rank correlation."""

import numpy as np

RESAMPLES = 2000
CONFIDENCE = 0.95


def mean_bounds(values: np.ndarray) -> tuple[float, float]:
    """The mean's bounds, each one-sided at 95 %: the heads [n] are drawn again, with replacement.

    Heads of one run share data and seed, so that this speaks of other heads of such runs. Heads of further
    seeds go in with them.

    >>> low, high = mean_bounds(np.array([1.0, 2.0, 3.0, 4.0]))
    >>> low < 2.5 < high
    True
    """
    generator = np.random.default_rng(0)
    means = generator.choice(values, (RESAMPLES, len(values))).mean(axis=1)
    return float(np.quantile(means, 1 - CONFIDENCE)), float(np.quantile(means, CONFIDENCE))


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation of two series; 0 where one of them is constant.

    >>> spearman(np.array([1, 2, 3, 4]), np.array([1.0, 10.0, 20.0, 21.0]))
    1.0
    """
    ranks = [_ranks(series) - (len(series) - 1) / 2 for series in (first, second)]
    size = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / size if size > 0 else 0.0


def _ranks(series: np.ndarray) -> np.ndarray:
    """Places in the order, from 0; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(series, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts + 1) / 2)[inverse]
