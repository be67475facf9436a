"""Claim 4 on runs at several initialisation scales: the smaller it is, the lower the rank of the change."""

from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np

from rankrise.claims.claim import Measure, at_least, told
from rankrise.claims.heads import at_the_end
from rankrise.claims.losses import losses
from rankrise.claims.statistics import RESAMPLES
from rankrise.runs import NotRecorded, Study

MOST_PAIRS = 0.75


def falls_with_scale(study: Study) -> list[Measure]:
    """Heads of the same layer at two scales, every pair: does the smaller scale have the lower rank?"""
    if len(study.scales) < 2:
        raise NotRecorded("there is one initialisation scale: pass runs at several, alike otherwise")
    measures: list[Measure] = []
    for product in study.main[0].products:
        ends = {scale: at_the_end(members, product) for scale, members in study.scales.items()}
        layers = range(min(map(len, ends.values())))
        orders = [in_order([ends[scale][layer] for scale in ends]) for layer in layers]
        steps = {
            f"{larger:g} and {smaller:g}": np.mean([in_order([*pair]) for pair in zip(*both, strict=True)])
            for (larger, smaller), both in zip(pairwise(ends), pairwise(ends.values()), strict=True)
        }
        least = min(steps, key=lambda scales: steps[scales])
        means = np.array([[heads[layer].mean() for layer in layers] for heads in ends.values()])
        measures += [
            at_least(
                f"pairs of heads of a layer whose smaller scale has the lower rank, {product}",
                float(np.mean(orders)),
                MOST_PAIRS,
                "half of them would by chance; three of four is half-way to all",
            ),
            told(
                f"the same of neighbouring scales, the least, {product}",
                float(steps[least]),
                f"between {least}: an average may hide a step without an order",
            ),
            at_least(
                f"slope of log(stable rank of {product}) over log(scale) (lower bound)",
                _slope_bound(np.log(list(ends)), list(ends.values())),
                0.0,
                "falling ranks have a positive one; lower 95 % bound over heads",
            ),
            told(
                f"layers in which the mean rank of {product} falls from each scale to the next",
                float((np.diff(means, axis=0) < 0).all(axis=0).sum()),
                f"of {len(orders)} layers, scales {', '.join(f'{scale:g}' for scale in ends)}",
            ),
        ]
    return measures + _losses(study)


def _losses(study: Study) -> list[Measure]:
    """The training losses that the scales reached, where recorded: a network that has learned less has had
    less cause to grow in rank."""
    known = {scale: losses(members)[:, 1] for scale, members in study.scales.items()}
    reached = {scale: float(ends.mean()) for scale, ends in known.items() if len(ends)}
    if len(reached) < len(study.scales):
        return []
    each = ", ".join(f"{loss:.3g} at {scale:g}" for scale, loss in reached.items())
    largest = max(reached.values()) / max(min(reached.values()), np.finfo(float).tiny)
    why = f"{each}; what has learned less may be of lower rank for that"
    return [told("largest training loss of a scale over the smallest", largest, why)]


def in_order(samples: Sequence[np.ndarray]) -> float:
    """Of all pairs of values from two of the samples, the part in which the earlier sample's is larger.

    >>> in_order([np.array([3.0, 4.0]), np.array([2.0, 3.5])])
    0.75
    """
    parts = [(first[:, None] > second).mean() for first, second in combinations(samples, 2)]
    return float(np.mean(parts))


def _slope_bound(logs: np.ndarray, ends: list[list[np.ndarray]]) -> float:
    """The lower bound of the mean slope over layers, heads drawn again within each layer and scale."""
    generator = np.random.default_rng(0)
    centred = logs - logs.mean()
    weights = centred / (centred**2).sum()
    slopes = np.zeros(RESAMPLES)
    layers = range(min(map(len, ends)))
    for layer in layers:
        for weight, heads in zip(weights, (end[layer] for end in ends), strict=True):
            drawn = generator.choice(np.log(heads), (RESAMPLES, len(heads))).mean(axis=1)
            slopes += weight * drawn / len(layers)
    return float(np.quantile(slopes, 0.05))
