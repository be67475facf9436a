"""The paper on runs at several initialisation scales: the smaller it is, the lower the rank of the change."""

from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from rankrise.claims.claim import Measure, at_least, by_each_choice, noted
from rankrise.claims.equal_loss import steps_of_equal_loss
from rankrise.claims.heads import at_steps, at_the_end, of_shared_layers
from rankrise.claims.learned import losses
from rankrise.claims.ranks import OTHERS, STABLE
from rankrise.claims.statistics import (
    Estimate,
    Heads,
    contrast,
    in_order,
    in_order_in_every_layer,
    smallest,
)
from rankrise.runs import NotRecorded, Study

MOST_PAIRS = 0.75
POWER = "power of the scale with which the stable rank grows"
CHOICES: dict[str, dict[str, Any]] = {
    "equal training losses": {"equal_loss": True},
    "the worst layer": {"worst_layer": True},
    "a threshold at chance level": {"most": 0.5},
    **{kind: {"kind": kind} for kind in OTHERS},
}


def falls_with_scale(study: Study) -> list[Measure]:
    """Heads of the same layer at two scales, every pair: does the smaller scale have the lower rank?"""
    if len(study.scales) < 2:
        raise NotRecorded("there is one initialisation scale: pass runs that differ only in it.")
    measures: list[Measure] = []
    for product in study.main[0].products:
        ends = _ends(study, product)
        neighbours = {
            f"{larger:g} and {smaller:g}": in_order([ends[larger], ends[smaller]])
            for larger, smaller in pairwise(ends)
        }
        least = min(neighbours, key=lambda scales: neighbours[scales].value)
        slopes, _ = _slope(ends)
        measures += [noted(POWER, one, "", part=product, layer=layer) for layer, one in slopes.items()]
        measures += [
            *by_each_choice(partial(_deciding, study, product), CHOICES),
            noted(
                "share of such pairs for the two neighbouring scales where it is lowest",
                neighbours[least],
                f"between {least}: an average may hide a step without an order",
                part=product,
            ),
        ]
    return measures + _losses(study)


def _deciding(
    study: Study,
    product: str,
    kind: str = STABLE,
    equal_loss: bool = False,
    worst_layer: bool = False,
    most: float = MOST_PAIRS,
) -> list[Measure]:
    ends = _at_equal_loss(study, product) if equal_loss else _ends(study, product, kind)
    slopes, slope = _slope(ends)
    return [
        at_least(
            "share of pairs of heads in the same layer in which the smaller scale has the lower rank",
            (in_order_in_every_layer if worst_layer else in_order)(list(ends.values())),
            most,
            "half of them would by chance; three of four is half-way to all",
            part=product,
        ),
        at_least(
            f"{POWER}, mean over layers",
            smallest(slopes.values()) if worst_layer else slope,
            0.0,
            "above 0, the rank falls with the scale; the slope of log(stable rank) over log(scale)",
            part=product,
        ),
    ]


def _ends(study: Study, product: str, kind: str = STABLE) -> dict[float, Heads]:
    ends = [at_the_end(runs, product, kind) for runs in study.scales.values()]
    return dict(zip(study.scales, of_shared_layers(ends), strict=True))


def _at_equal_loss(study: Study, product: str) -> dict[float, Heads]:
    """Not at the end, but when each run had learned as much as the one that learned least."""
    steps = steps_of_equal_loss([run for runs in study.scales.values() for run in runs])
    then = [at_steps(steps, runs, product) for runs in study.scales.values()]
    return dict(zip(study.scales, of_shared_layers(then), strict=True))


def _slope(ends: dict[float, Heads]) -> tuple[dict[int, Estimate], Estimate]:
    """The slope of log(rank) over log(scale), by layer and the mean."""
    logs = np.log(list(ends))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    return contrast([heads.mapped(np.log) for heads in ends.values()], weights)


def _losses(study: Study) -> list[Measure]:
    """The training losses that the scales reached, where recorded: a network that has learned less has had
    less cause to grow in rank."""
    known = {scale: losses(runs)[:, 1] for scale, runs in study.scales.items()}
    reached = {scale: float(ends.mean()) for scale, ends in known.items() if len(ends)}
    if len(reached) < len(study.scales):
        return []
    each = ", ".join(f"{loss:.3g} at {scale:g}" for scale, loss in reached.items())
    largest = max(reached.values()) / max(min(reached.values()), np.finfo(float).tiny)
    why = f"{each}; what has learned less may be of lower rank for that"
    return [noted("largest training loss of a scale, over the smallest", largest, why)]
