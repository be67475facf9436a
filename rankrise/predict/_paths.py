"""Moments of a solved flow, the cubics between them, and the times at which something passes a threshold."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


class StepTooSmall(Exception):
    """The step size fell to nothing: the flow leaves every bound, or the loss is not smooth there."""


@dataclass(frozen=True, eq=False)
class Moment:
    """A moment of a flow: time t, the loss, what is followed, and its rate.

    A diagonal network's `place` is z; for matrices it is the flat products, with the logarithms of their
    singular values, and `drift` is the largest fraction of a column by which the conserved quantity had to be
    restored. A moment that is not `accepted` lies within a step.
    """

    time: float
    loss: float
    place: Tensor
    rate: Tensor
    log_singular_values: Sequence[Tensor] = ()
    drift: float = 0.0
    accepted: bool = True


@dataclass(frozen=True)
class Crossing:
    """Singular value number `rank` of a product passed a threshold, upward or downward, at a rescaled time.

    In a diagonal network it is the size of the coordinate `product`, and `rank` is 1.
    """

    time: float
    product: int
    upward: bool
    rank: int = 1

    @property
    def coordinate(self) -> int:
        """The number of the product, which is a coordinate of `a` in a diagonal network."""
        return self.product


def hermite(part: Any, step: Any, ends: tuple[Any, Any], rates: tuple[Any, Any]) -> Any:
    """The cubic through values and rates at both ends of a step, at a `part` of it from 0 to 1.

    >>> [hermite(part, 2.0, (1.0, 5.0), (2.0, 2.0)) for part in (0.0, 0.5, 1.0)]
    [1.0, 3.0, 5.0]
    """
    rest = 1 - part
    return rest * rest * ((1 + 2 * part) * ends[0] + part * step * rates[0]) + part * part * (
        (1 + 2 * rest) * ends[1] - rest * step * rates[1]
    )


def crossed(
    level: Tensor | float, step: Tensor, ends: tuple[Tensor, Tensor], rates: tuple[Tensor, Tensor]
) -> Tensor:
    """The part of each step at which its cubic meets its level, by bisection."""
    left, right = torch.zeros_like(step), torch.ones_like(step)
    for _ in range(60):
        middle = (left + right) / 2
        before = (hermite(middle, step, ends, rates) > level) == (ends[0] > level)
        left, right = torch.where(before, middle, left), torch.where(before, right, middle)
    return right
