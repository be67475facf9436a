"""Statistics over heads: means with bootstrap intervals, and comparisons of samples."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from itertools import combinations

import numpy as np

RESAMPLES = 2000
TAIL = 0.05
"""Probability outside each end of an interval."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and its 90 % interval."""

    value: float
    low: float
    high: float


def extreme(worst: Callable[..., float], several: Collection[Estimate]) -> Estimate:
    """`min` or `max` of several estimates, bound by bound."""
    return Estimate(*map(worst, zip(*map(astuple, several), strict=True)))


@dataclass(frozen=True)
class Heads:
    """One value per head, [heads of all seeds] by layer; `layers` numbers the layers from 1."""

    layers: tuple[int, ...]
    values: Sequence[np.ndarray]
    sizes: tuple[tuple[int, ...], ...]
    """The number of heads by layer and seed."""

    @classmethod
    def of(cls, layers: Sequence[int], values: Sequence[Sequence[np.ndarray]]) -> "Heads":
        """From arrays [heads] by layer and seed."""
        sizes = tuple(tuple(map(len, seeds)) for seeds in values)
        return cls(tuple(layers), list(map(np.concatenate, values)), sizes)

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "Heads":
        """A function of each value."""
        return replace(self, values=list(map(function, self.values)))

    def only(self, layers: Collection[int]) -> "Heads":
        """The heads of some layers."""
        rows = zip(self.layers, self.values, self.sizes, strict=True)
        return Heads(*zip(*(row for row in rows if row[0] in layers), strict=True))


@dataclass(frozen=True)
class Layers:
    """A number of each layer, `drawn` [layers, 1 + RESAMPLES]: observed, and with heads drawn again.

    With `logs` the numbers are logarithms, and estimates are of their exponentials.
    """

    numbers: tuple[int, ...]
    drawn: np.ndarray
    logs: bool = False

    def each(self) -> dict[int, Estimate]:
        """By layer."""
        return {layer: self._estimate(drawn) for layer, drawn in zip(self.numbers, self.drawn, strict=True)}

    def over(self, how: str) -> Estimate:
        """The "mean" (geometric for logarithms), "smallest" or "largest" of all layers."""
        if how == "mean":
            return self._estimate(self.drawn.mean(axis=0))
        return extreme(min if how == "smallest" else max, self.each().values())

    def _estimate(self, drawn: np.ndarray) -> Estimate:
        one = Estimate(float(drawn[0]), *np.quantile(drawn[1:], [TAIL, 1 - TAIL]).tolist())
        return Estimate(*np.exp(astuple(one)).tolist()) if self.logs else one


def means(*samples: Heads, logs: bool = False) -> list[Layers]:
    """The mean over the heads of each layer, for samples that are drawn independently.

    >>> (layers,) = means(Heads.of([1, 2], [[[1.0, 2.0, 3.0]], [[5.0, 6.0, 7.0]]]))
    >>> layers.over("mean").value, layers.over("largest").value
    (4.0, 6.0)
    """
    found = []
    for sample, weights in zip(samples, _redrawn(tuple(one.sizes for one in samples)), strict=True):
        both = zip(sample.values, weights, strict=True)
        drawn = [np.append(heads.mean(), weight @ heads) for heads, weight in both]
        found.append(Layers(sample.layers, np.stack(drawn), logs))
    return found


def in_order(samples: Sequence[Heads]) -> Layers:
    """The share of pairs of heads, from one layer of two samples, in which the earlier sample's is larger.

    All pairs of samples count the same.

    >>> first, second = (Heads.of([1], [[values]]) for values in ([3.0, 4.0], [2.0, 3.5]))
    >>> in_order([first, second]).over("mean").value
    0.75
    """
    weights, layers = _redrawn(tuple(one.sizes for one in samples)), []
    for layer in range(len(samples[0].layers)):
        heads, shares = [sample.values[layer] for sample in samples], []
        for first, second in combinations(range(len(samples)), 2):
            larger = heads[first][:, None] > heads[second]
            drawn = ((weights[first][layer] @ larger) * weights[second][layer]).sum(axis=1)
            shares.append(np.append(larger.mean(), drawn))
        layers.append(np.mean(shares, axis=0))
    return Layers(samples[0].layers, np.stack(layers))


@lru_cache(maxsize=4)  # one claim asks for the same weights again and again
def _redrawn(samples: tuple[tuple[tuple[int, ...], ...], ...]) -> Sequence[Sequence[np.ndarray]]:
    """The weight of each head in each redrawing, [RESAMPLES, heads of all seeds] by sample and layer.

    Heads are drawn again within their layer and seed, with replacement; several seeds are drawn again too,
    the same for all layers. `samples` are the numbers of heads by layer and seed.
    """
    generator, found = np.random.default_rng(0), []
    for sizes in samples:
        seeds, layers = len(sizes[0]), []
        times = generator.multinomial(seeds, [1 / seeds] * seeds, size=RESAMPLES)
        for layer in sizes:
            counts = [
                generator.multinomial(times[:, seed] * heads, [1 / heads] * heads)
                for seed, heads in enumerate(layer)
                if heads
            ]
            together = np.concatenate(counts, axis=1)
            layers.append(together / np.maximum(together.sum(axis=1, keepdims=True), 1))
        found.append(layers)
    return found
