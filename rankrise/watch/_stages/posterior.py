"""Draws of the noiseless curve under a noisy one: exact Bayesian change points.

P. Fearnhead, "Exact and efficient Bayesian inference for multiple changepoint problems", Statistics and
Computing 16 (2006). The curve is made of straight pieces, independent of one another. The filter over the
beginnings of the last piece is exact, and so are draws from the posterior: no Markov chain, nothing to tune.
"""

import numpy as np

# Expected pieces of a curve, a priori.
PIECES = 10.0


def draw_curves(
    places: np.ndarray, values: np.ndarray, variances: np.ndarray, draws: int, seed: int
) -> np.ndarray:
    """Draws [draws, n] of the curve behind `values` (n,) at increasing `places` (n,), with noise of
    `variances` (n,).

    >>> places = np.arange(40.0)
    >>> jump = np.where(places < 20, 0.0, 1.0)
    >>> noisy = jump + 0.1 * np.random.default_rng(0).standard_normal(40)
    >>> curves = draw_curves(places, noisy, np.full(40, 0.01), draws=100, seed=0)
    >>> bool(abs(curves.mean(0) - jump).max() < 0.12)
    True
    """
    count, source = len(places), np.random.default_rng(seed)
    spread = max(float(np.ptp(values)), 1e-300) ** 2
    pieces = _Pieces(places, values - np.median(values), variances, spread)
    stop = min(0.5, PIECES / count)
    # after[i]: log of the probability of all values from i on, if a piece begins at i.
    after = np.zeros(count + 1)
    choices: list[np.ndarray] = [np.zeros(0)] * count
    for start in range(count - 1, -1, -1):
        ends = np.arange(start + 1, count + 1)
        likely = pieces.evidence(start, ends) + (ends - start - 1) * np.log1p(-stop)
        likely[:-1] += np.log(stop) + after[start + 1 : count]
        top = likely.max()
        weights = np.exp(likely - top)
        after[start] = top + np.log(weights.sum())
        choices[start] = np.cumsum(weights) / weights.sum()
    curves = np.empty((draws, count))
    for curve in curves:
        start = 0
        while start < count:
            end = min(start + 1 + int(np.searchsorted(choices[start], source.random())), count)
            curve[start:end] = pieces.draw(start, end, source)
            start = end
    return curves + np.median(values)


class _Pieces:
    """Running sums from which every piece's weighted regression follows at once; a piece's level and tilt are
    normal with variance `spread` a priori."""

    def __init__(self, places: np.ndarray, values: np.ndarray, variances: np.ndarray, spread: float) -> None:
        x, y = places - places.mean(), values
        columns = np.stack([np.ones_like(y), x, x**2, y, x * y, y**2])
        sums = np.cumsum(1 / variances * columns, axis=1)
        self._sums = np.concatenate([np.zeros((len(columns), 1)), sums], axis=1)
        self._places, self._spread = x, spread
        self._fitted: dict[tuple[int, int], list[float]] = {}

    def _fit(self, start: int, ends: np.ndarray) -> tuple[np.ndarray, ...]:
        """Of pieces [start, end): weight, centre, width, level, tilt (the change over a width), misfit."""
        one, x, xx, y, xy, yy = self._sums[:, ends] - self._sums[:, [start]]
        centre, level = x / one, y / one
        width = np.sqrt(np.maximum(xx / one - centre**2, 0))
        flat = width <= 1e-6 * (1 + abs(centre))  # one point, up to rounding
        tilt = np.where(flat, 0.0, (xy / one - centre * level) / np.where(flat, 1.0, width))
        misfit = np.maximum(yy - one * (level**2 + tilt**2), 0)
        return one, centre, np.where(flat, 0.0, width), level, tilt, misfit

    def evidence(self, start: int, ends: np.ndarray) -> np.ndarray:
        """Log marginal likelihoods of pieces [start, end)."""
        weight, _, width, level, tilt, misfit = self._fit(start, ends)
        total = 1 / weight + self._spread
        shrink = np.log1p(weight * self._spread)
        slope = np.where(width > 0, tilt**2 / total + shrink, 0.0)
        return -0.5 * (misfit + level**2 / total + shrink + slope)

    def draw(self, start: int, end: int, source: np.random.Generator) -> np.ndarray:
        """A piece drawn from its posterior."""
        if (start, end) not in self._fitted:  # most draws have the same pieces
            self._fitted[start, end] = [float(value[0]) for value in self._fit(start, np.array([end]))]
        weight, centre, width, level, tilt, _ = self._fitted[start, end]
        shrink = self._spread / (self._spread + 1 / weight)
        error = np.sqrt(shrink / weight)
        drawn = level * shrink + error * source.standard_normal()
        if width == 0:
            return np.full(end - start, drawn)
        slope = (tilt * shrink + error * source.standard_normal()) / width
        return drawn + slope * (self._places[start:end] - centre)
