"""Statistics over heads: means with bootstrap intervals, comparisons of samples, and rank correlation."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

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

    @classmethod
    def of(cls, value: float, redrawn: np.ndarray) -> "Estimate":
        """The statistic with the interval of its values on redrawn heads [RESAMPLES]."""
        return cls(float(value), *np.quantile(redrawn, [TAIL, 1 - TAIL]).tolist())

    def mapped(self, function: Callable[[float], float]) -> "Estimate":
        """An increasing function of it."""
        return Estimate(*map(function, astuple(self)))


def extreme(worst: Callable[..., float], several: Collection[Estimate]) -> Estimate:
    """`min` or `max` of several estimates, bound by bound.

    >>> extreme(max, [Estimate(2, 1, 5), Estimate(3, 2, 4)])
    Estimate(value=3, low=2, high=5)
    """
    return Estimate(*map(worst, zip(*map(astuple, several), strict=True)))


@dataclass(frozen=True)
class Heads:
    """One value per head: `values[layer][seed]` is an array [heads], and `layers` numbers the layers from 1.

    Intervals come from drawing heads again within their layer and seed, with replacement; several seeds are
    drawn again too, the same for all layers. All layers count the same.

    >>> heads = Heads((1, 2), (([1.0, 2.0, 3.0],), ([5.0, 6.0, 7.0],)))
    >>> heads.over_layers("mean").value, heads.over_layers("largest").value
    (4.0, 6.0)
    """

    layers: tuple[int, ...]
    values: Sequence[Sequence[np.ndarray]]

    @property
    def pooled(self) -> list[np.ndarray]:
        """The values of each layer, of all seeds together."""
        return [np.concatenate(seeds) for seeds in self.values]

    def weights(self, generator: np.random.Generator | None = None) -> Sequence[np.ndarray]:
        """The weight of each head in each redrawing, [RESAMPLES, heads of all seeds] by layer."""
        sizes = tuple(tuple(map(len, seeds)) for seeds in self.values)
        return _first_drawn(sizes) if generator is None else _drawn(sizes, generator)

    def by_layer(self) -> dict[int, Estimate]:
        """The mean of each layer."""
        each = zip(self.layers, self.pooled, self.weights(), strict=True)
        return {layer: Estimate.of(heads.mean(), weight @ heads) for layer, heads, weight in each}

    def over_layers(self, how: str) -> Estimate:
        """The "mean", "median", "smallest" or "largest" of the layers' means."""
        if how in ("smallest", "largest"):
            return extreme(min if how == "smallest" else max, self.by_layer().values())
        summary: Callable[..., Any] = np.mean if how == "mean" else np.median
        redrawn = [weight @ heads for weight, heads in zip(self.weights(), self.pooled, strict=True)]
        return Estimate.of(float(summary([heads.mean() for heads in self.pooled])), summary(redrawn, axis=0))

    def only(self, layers: Collection[int]) -> "Heads":
        """The heads of some layers."""
        kept = [place for place, layer in enumerate(self.layers) if layer in layers]
        return Heads(tuple(self.layers[place] for place in kept), [self.values[place] for place in kept])

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "Heads":
        """A function of each value."""
        return Heads(self.layers, [[function(heads) for heads in layer] for layer in self.values])


def _drawn(sizes: tuple[tuple[int, ...], ...], generator: np.random.Generator) -> Sequence[np.ndarray]:
    """Weights for heads of given numbers by layer and seed."""
    seeds = len(sizes[0])
    drawn = generator.multinomial(seeds, [1 / seeds] * seeds, size=RESAMPLES)
    layers = []
    for layer in sizes:
        counts = [
            generator.multinomial(drawn[:, seed] * heads, [1 / heads] * heads)
            for seed, heads in enumerate(layer)
            if heads
        ]
        together = np.concatenate(counts, axis=1)
        layers.append(together / np.maximum(together.sum(axis=1, keepdims=True), 1))
    return layers


@lru_cache(maxsize=4)
def _first_drawn(sizes: tuple[tuple[int, ...], ...]) -> Sequence[np.ndarray]:
    """The weights from a new generator, cached because one claim asks for them again and again."""
    return _drawn(sizes, np.random.default_rng(0))


def in_order(samples: Sequence[Heads], in_every_layer: bool = False) -> Estimate:
    """The share of pairs of heads, from one layer of two samples, in which the earlier sample's is larger.

    Layers count the same, and so do pairs of samples. With `in_every_layer`, the layer counts in which it is
    smallest.

    >>> first, second = (Heads((1,), (([3.0, 4.0],),)), Heads((1,), (([2.0, 3.5],),)))
    >>> in_order([first, second]).value
    0.75
    """
    if in_every_layer:
        return extreme(min, [in_order([one.only({layer}) for one in samples]) for layer in samples[0].layers])
    generator = np.random.default_rng(0)
    weights = [sample.weights(generator) for sample in samples]
    pooled = [sample.pooled for sample in samples]
    shares, redrawn = [], []
    for first in range(len(samples)):
        for second in range(first + 1, len(samples)):
            for layer in range(len(pooled[first])):
                larger = pooled[first][layer][:, None] > pooled[second][layer]
                shares.append(larger.mean())
                redrawn.append(((weights[first][layer] @ larger) * weights[second][layer]).sum(axis=1))
    return Estimate.of(float(np.mean(shares)), np.mean(redrawn, axis=0))


def contrast(samples: Sequence[Heads], weights: Sequence[float]) -> tuple[dict[int, Estimate], Estimate]:
    """The weighted sum of the samples' means: by layer, and the mean over layers.

    Weights 1 and -1 give a difference, those of a straight line its slope. The first part is empty if the
    samples have different layers.
    """
    generator = np.random.default_rng(0)
    means = []  # by sample and layer, [RESAMPLES + 1]: redrawn, and last the observed one
    for sample in samples:
        drawn = zip(sample.weights(generator), sample.pooled, strict=True)
        means.append([np.append(weight @ heads, heads.mean()) for weight, heads in drawn])

    def weighted(of_samples: Sequence[np.ndarray]) -> Estimate:
        total = np.asarray(weights) @ np.stack(of_samples)
        return Estimate.of(total[-1], total[:-1])

    together = weighted([np.mean(layers, axis=0) for layers in means])
    if len({sample.layers for sample in samples}) > 1:
        return {}, together
    same = zip(samples[0].layers, zip(*means, strict=True), strict=True)
    return {layer: weighted(of_layer) for layer, of_layer in same}, together


def spearman(first: np.ndarray, second: np.ndarray) -> float:
    """Spearman's rank correlation; 0 if one of the series is constant.

    >>> spearman(np.array([1, 2, 3, 4]), np.array([1.0, 10.0, 20.0, 21.0]))
    1.0
    """
    ranks = []
    for series in (first, second):
        _, inverse, counts = np.unique(series, return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(counts) - (counts + 1) / 2)[inverse] - (len(series) - 1) / 2)
    size = float(np.sqrt((ranks[0] ** 2).sum() * (ranks[1] ** 2).sum()))
    return float((ranks[0] * ranks[1]).sum()) / size if size > 0 else 0.0
