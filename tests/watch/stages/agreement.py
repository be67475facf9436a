"""Steps that were found beside the stages of Algorithm 1: matched, missed, false."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NEAR = 0.2
"""A plateau is reached where the flow is nearer to it than this fraction of the jumps to its neighbours."""


class Passage(NamedTuple):
    """The way from one resolved plateau of Algorithm 1 to the next, through stages `first` to `last`.

    The flow is nearest to the plateaus at `begin` and `end`; the last way may be `open`, without an end.
    """

    begin: float
    end: float
    first: int
    last: int
    open: bool = False


class Agreement(NamedTuple):
    """How many passages have a step in them, how many have none, and steps that no stage accounts for."""

    matched: int
    missed: int
    false: int


def passages(points: np.ndarray, times: np.ndarray, values: np.ndarray) -> list[Passage]:
    """The passages of a flow at a finite scale, which is at `values` [n, p] at `times` (n,).

    `points` [stages + 1, p] are Algorithm 1's plateaus, the initial one included. A plateau is resolved if
    the flow comes near and stays at least as long as the way from the plateau reached before took.
    """
    jumps = np.linalg.norm(np.diff(points, axis=0), axis=1)
    distances = np.linalg.norm(values[:, None] - points[None], axis=2)
    found: list[Passage] = []
    begin, left, before = float(times[0]), float(times[0]), 0
    for number in range(len(points)):
        nearest_jump = jumps[max(number - 1, 0) : number + 1].min()
        (near,) = np.nonzero((distances[:, number] <= NEAR * nearest_jump) & (times >= left))
        if not len(near):
            continue
        arrives, leaves = float(times[near[0]]), float(times[near[-1]])
        if number and leaves - arrives >= arrives - left:
            end = float(times[near[distances[near, number].argmin()]])
            found.append(Passage(begin, end, before + 1, number))
            begin, before = end, number
        left = leaves
    if before + 1 < len(points):
        found.append(Passage(begin, float(times[-1]), before + 1, len(points) - 1, open=True))
    return found


def agreement(
    resolved: Sequence[Passage], found: Sequence[float], visible: Sequence[bool] | None = None
) -> Agreement:
    """Steps at the times `found` beside passages; those not `visible` in the curve need not be found.

    A passage of several stages may have as many steps, and an open one none.
    """
    matched = missed = false = 0
    for way, must in zip(resolved, visible or [True] * len(resolved), strict=True):
        count = sum(way.begin < time <= way.end for time in found)
        matched += count > 0 and not way.open
        missed += count == 0 and must and not way.open
        false += max(0, count - (way.last - way.first + 1))
    return Agreement(matched, missed, false)
