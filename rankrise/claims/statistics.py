"""Statistics over heads: means with bootstrap intervals, and comparisons of samples."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from itertools import combinations

import numpy as np

RESAMPLES = 2000
TAIL = 0.05
"""Probability outside each end of an interval."""

Heads = Mapping[int, Sequence[np.ndarray]]
"""One value per head: by layer, numbered from 1, and by seed."""


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

    def mean(self) -> Estimate:
        """Over layers; geometric for logarithms."""
        return self._estimate(self.drawn.mean(axis=0))

    def _estimate(self, drawn: np.ndarray) -> Estimate:
        one = Estimate(float(drawn[0]), *np.quantile(drawn[1:], [TAIL, 1 - TAIL]).tolist())
        return Estimate(*np.exp(astuple(one)).tolist()) if self.logs else one


def mapped(function: Callable[[np.ndarray], np.ndarray], heads: Heads) -> Heads:
    """A function of each value."""
    return {layer: list(map(function, seeds)) for layer, seeds in heads.items()}


def means(*samples: Heads, logs: bool = False) -> list[Layers]:
    """The mean over the heads of each layer, for samples that are drawn independently."""
    found = []
    for sample, weights in zip(samples, _redrawn(*map(_sizes, samples)), strict=True):
        values = map(np.concatenate, sample.values())
        drawn = [
            np.append(heads.mean(), weight @ heads) for heads, weight in zip(values, weights, strict=True)
        ]
        found.append(Layers(tuple(sample), np.stack(drawn), logs))
    return found


def in_order(samples: Sequence[Heads]) -> Layers:
    """The share of pairs of heads, from one layer of two samples, in which the earlier sample's is larger.

    All pairs of samples count the same.
    """
    weights, layers = _redrawn(*map(_sizes, samples)), []
    for place, layer in enumerate(samples[0]):
        heads, shares = [np.concatenate(sample[layer]) for sample in samples], []
        for first, second in combinations(range(len(samples)), 2):
            larger = heads[first][:, None] > heads[second]
            drawn = ((weights[first][place] @ larger) * weights[second][place]).sum(axis=1)
            shares.append(np.append(larger.mean(), drawn))
        layers.append(np.mean(shares, axis=0))
    return Layers(tuple(samples[0]), np.stack(layers))


def _sizes(sample: Heads) -> tuple[tuple[int, ...], ...]:
    """The number of heads by layer and seed."""
    return tuple(tuple(map(len, seeds)) for seeds in sample.values())


@lru_cache(maxsize=4)  # one claim asks for the same weights again and again
def _redrawn(*samples: tuple[tuple[int, ...], ...]) -> Sequence[Sequence[np.ndarray]]:
    """The weight of each head in each redrawing, [RESAMPLES, heads of all seeds] by sample and layer.

    Heads are drawn again within their layer and seed, with replacement; several seeds are drawn again too,
    the same for all layers.
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
