"""The paper on runs at several initialisation scales: the smaller it is, the lower the rank of the change."""

from itertools import pairwise

import numpy as np

from rankrise.claims.claim import Measure, at_least, noted
from rankrise.claims.heads import at_the_end
from rankrise.claims.learned import losses
from rankrise.claims.statistics import contrast, in_order
from rankrise.runs import NotRecorded, Study

MOST_PAIRS = 0.75
POWER = "power of the scale with which the stable rank grows"


def falls_with_scale(study: Study) -> list[Measure]:
    """Heads of the same layer at two scales, every pair: does the smaller scale have the lower rank?"""
    if len(study.scales) < 2:
        raise NotRecorded("there is one initialisation scale: pass runs at several, alike otherwise.")
    logs = np.log(list(study.scales))
    weights = (logs - logs.mean()) / ((logs - logs.mean()) ** 2).sum()
    measures: list[Measure] = []
    for product in study.main[0].products:
        ends = {scale: at_the_end(runs, product) for scale, runs in study.scales.items()}
        neighbours = {
            f"{larger:g} and {smaller:g}": in_order([ends[larger], ends[smaller]])
            for larger, smaller in pairwise(ends)
        }
        least = min(neighbours, key=lambda scales: neighbours[scales].value)
        slopes, slope = contrast([heads.mapped(np.log) for heads in ends.values()], weights)
        measures += [noted(POWER, one, "", part=product, layer=layer) for layer, one in slopes.items()]
        measures += [
            at_least(
                "share of pairs of heads in the same layer in which the smaller scale has the lower rank",
                in_order(list(ends.values())),
                MOST_PAIRS,
                "half of them would by chance; three of four is half-way to all",
                part=product,
            ),
            at_least(
                f"{POWER}, mean over layers",
                slope,
                0.0,
                "above 0, the rank falls with the scale; the slope of log(stable rank) over log(scale)",
                part=product,
            ),
            noted(
                "share of such pairs for the two neighbouring scales where it is lowest",
                neighbours[least],
                f"between {least}: an average may hide a step without an order",
                part=product,
            ),
        ]
    return measures + _losses(study)


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
