"""Statistics over heads: means with intervals, by drawing seeds and heads again, and rank correlation."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

RESAMPLES = 2000
TAIL = 0.05
"""Outside each end of an interval: its bounds are one-sided at 95 %, so that between them are 90 %."""


@dataclass(frozen=True)
class Estimate:
    """A statistic and its interval."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, value: float, redrawn: np.ndarray) -> "Estimate":
        """The statistic with the interval that its values on redrawn heads [RESAMPLES] span."""
        return cls(float(value), *np.quantile(redrawn, [TAIL, 1 - TAIL]).tolist())

    def mapped(self, function: Callable[[float], float]) -> "Estimate":
        """A growing function of it."""
        return Estimate(function(self.value), function(self.low), function(self.high))


@dataclass(frozen=True)
class Heads:
    """One value per head: `values[layer][seed]` is [heads]. `layers` has the layers' numbers, from 1.

    Heads are drawn again within their layer and seed, with replacement, and where there are several seeds,
    these are drawn again too, the same for all layers. Layers weigh alike. With one seed an interval speaks
    of other heads of such a run; with several, also of other seeds, as far as two or three can tell.

    >>> heads = Heads((1, 2), (([1.0, 2.0, 3.0],), ([5.0, 6.0, 7.0],)))
    >>> heads.mean().value, heads.mean().low > 3
    (4.0, True)
    """

    layers: tuple[int, ...]
    values: Sequence[Sequence[np.ndarray]]

    def pooled(self, place: int) -> np.ndarray:
        """The values of a layer, by its place, of all seeds together."""
        return np.concatenate(self.values[place])

    def weights(self, generator: np.random.Generator) -> Sequence[np.ndarray]:
        """By layer: how much each head counts in each drawing, [RESAMPLES, heads of all seeds]."""
        return _drawn(self._sizes, generator)

    @property
    def _sizes(self) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(map(len, seeds)) for seeds in self.values)

    def by_layer(self) -> dict[int, Estimate]:
        """The mean of each layer."""
        weights = _first_drawn(self._sizes)
        pooled = [self.pooled(place) for place in range(len(self.layers))]
        return {
            layer: Estimate.of(heads.mean(), weight @ heads)
            for layer, heads, weight in zip(self.layers, pooled, weights, strict=True)
        }

    def mean(self) -> Estimate:
        """The mean over layers of their means."""
        return self._over_layers(np.mean)

    def median_layer(self) -> Estimate:
        """The median over layers of their means."""
        return self._over_layers(np.median)

    def largest_layer(self) -> Estimate:
        """The largest mean of a layer."""
        return largest(self.by_layer().values())

    def smallest_layer(self) -> Estimate:
        """The smallest mean of a layer."""
        return smallest(self.by_layer().values())

    def only(self, layers: Collection[int]) -> "Heads":
        """Those of some layers, by their numbers."""
        kept = [place for place, layer in enumerate(self.layers) if layer in layers]
        return Heads(tuple(self.layers[place] for place in kept), [self.values[place] for place in kept])

    def _over_layers(self, summary: Callable[..., Any]) -> Estimate:
        weights = _first_drawn(self._sizes)
        pooled = [self.pooled(place) for place in range(len(self.layers))]
        redrawn = [weight @ heads for weight, heads in zip(weights, pooled, strict=True)]
        return Estimate.of(float(summary([heads.mean() for heads in pooled])), summary(redrawn, axis=0))

    def mapped(self, function: Callable[[np.ndarray], np.ndarray]) -> "Heads":
        """A function of each value."""
        return Heads(self.layers, [[function(heads) for heads in layer] for layer in self.values])


def _drawn(sizes: tuple[tuple[int, ...], ...], generator: np.random.Generator) -> Sequence[np.ndarray]:
    """Weights for as many heads as there are, by layer and seed."""
    seeds = len(sizes[0])
    drawn = generator.multinomial(seeds, [1 / seeds] * seeds, size=RESAMPLES)
    layers = []
    for layer in sizes:
        counts = np.concatenate(
            [
                generator.multinomial(drawn[:, seed] * heads, [1 / heads] * heads)
                for seed, heads in enumerate(layer)
                if heads
            ],
            axis=1,
        )
        layers.append(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1))
    return layers


@lru_cache(maxsize=4)
def _first_drawn(sizes: tuple[tuple[int, ...], ...]) -> Sequence[np.ndarray]:
    """The same from a new generator: one claim asks for the same again and again."""
    return _drawn(sizes, np.random.default_rng(0))


def largest(several: Collection[Estimate]) -> Estimate:
    """The largest of several layers, or seeds: its bounds are the largest of theirs."""
    return Estimate(*(max(getattr(one, name) for one in several) for name in ("value", "low", "high")))


def smallest(several: Collection[Estimate]) -> Estimate:
    """The smallest of several: its bounds are the smallest of theirs."""
    return Estimate(*(min(getattr(one, name) for one in several) for name in ("value", "low", "high")))


def in_order(samples: Sequence[Heads]) -> Estimate:
    """Of all pairs of heads of a layer from two of the samples, the part in which the earlier sample's is
    larger; layers weigh alike, and so do pairs of samples.

    >>> first, second = (Heads((1,), (([3.0, 4.0],),)), Heads((1,), (([2.0, 3.5],),)))
    >>> in_order([first, second]).value
    0.75
    """
    generator = np.random.default_rng(0)
    weights = [sample.weights(generator) for sample in samples]
    parts, redrawn = [], []
    for first in range(len(samples)):
        for second in range(first + 1, len(samples)):
            for place in range(len(samples[first].layers)):
                larger = samples[first].pooled(place)[:, None] > samples[second].pooled(place)
                parts.append(larger.mean())
                redrawn.append(((weights[first][place] @ larger) * weights[second][place]).sum(axis=1))
    return Estimate.of(float(np.mean(parts)), np.mean(redrawn, axis=0))


def in_order_in_every_layer(samples: Sequence[Heads]) -> Estimate:
    """The same in the layer where it is smallest."""
    layers = samples[0].layers
    return smallest([in_order([sample.only({layer}) for sample in samples]) for layer in layers])


def contrast(samples: Sequence[Heads], weights: Sequence[float]) -> tuple[dict[int, Estimate], Estimate]:
    """The sum over samples of their means, each times its weight: by layer, and the mean over layers.

    A difference has the weights 1 and -1; a slope, those of a straight line's. Samples that have other layers
    than one another have no layers in common, and the first part is then empty.
    """
    generator = np.random.default_rng(0)
    means = []
    for sample in samples:
        drawn = sample.weights(generator)
        pooled = [sample.pooled(place) for place in range(len(sample.layers))]
        means.append(
            [np.append(weight @ heads, heads.mean()) for weight, heads in zip(drawn, pooled, strict=True)]
        )
    together = _weighted([np.mean(layers, axis=0) for layers in means], weights)
    if len({sample.layers for sample in samples}) > 1:
        return {}, together
    same = zip(samples[0].layers, zip(*means, strict=True), strict=True)
    return {layer: _weighted(of_layer, weights) for layer, of_layer in same}, together


def _weighted(means: Sequence[np.ndarray], weights: Sequence[float]) -> Estimate:
    """A weighted sum of means [RESAMPLES + 1], of which the last is the one that was observed."""
    total = np.asarray(weights) @ np.stack(means)
    return Estimate.of(total[-1], total[:-1])


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
