"""Moments of a solved flow, the cubics between them, and the times at which something passes a level."""

from collections.abc import Callable, Sequence
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
    singular values.
    """

    time: float
    loss: float
    place: Tensor
    rate: Tensor
    log_singular_values: Sequence[Tensor] = ()


def hermite(part: Any, step: Any, ends: tuple[Any, Any], rates: tuple[Any, Any]) -> Any:
    """The cubic through values and rates at both ends of a step, at a `part` of it from 0 to 1."""
    rest = 1 - part
    return rest * rest * ((1 + 2 * part) * ends[0] + part * step * rates[0]) + part * part * (
        (1 + 2 * rest) * ends[1] - rest * step * rates[1]
    )


def passages(
    times: Tensor, heights: Tensor, levels: Tensor, rates_at: Callable[[Tensor, Tensor], Tensor]
) -> list[tuple[float, int, bool]]:
    """When a column of `heights` (n, m) passes its level (m,): the time, the column, and whether upward.

    A column above its level at the beginning has a passage at time 0. `rates_at` gives the rates at some
    moments of some columns, nan where they are unknown: growth is then a line.
    """
    above = heights >= levels
    found = [(0.0, column, True) for column in above[0].nonzero()[:, 0].tolist()]
    steps, columns = (above[1:] != above[:-1]).nonzero(as_tuple=True)
    length, level = times[steps + 1] - times[steps], levels[columns]
    early, late = heights[steps, columns], heights[steps + 1, columns]
    rates = torch.stack([rates_at(steps, columns), rates_at(steps + 1, columns)])
    rates = torch.where(rates.isnan().any(0), (late - early) / length, rates)

    left, right = torch.zeros_like(length), torch.ones_like(length)
    for _ in range(60):
        middle = (left + right) / 2
        here = hermite(middle, length, (early, late), (rates[0], rates[1]))
        before = (here > level) == (early > level)
        left, right = torch.where(before, middle, left), torch.where(before, right, middle)
    right = torch.where(early.isfinite() & late.isfinite(), right, 1.0)
    moments = times[steps] + right * length
    return found + list(
        zip(moments.tolist(), columns.tolist(), above[steps + 1, columns].tolist(), strict=True)
    )
