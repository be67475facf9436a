"""Gradient flow of full matrices at any initialisation scale, one accepted step at a time.

Columns above the size `VISIBLE` are active: they make up the products, and their flow is stiff and nonlinear
(`steps.py`). All others feel the gradient that the active ones set, but do not change it: they follow a
linear equation (`exponential.py`) on logarithmic scales. A plateau is then a single step, up to where the
next column becomes visible, and the cost of a transition does not depend on alpha.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.predict._loss import Loss
from rankrise.predict._matrices.columns import Columns
from rankrise.predict._matrices.exponential import GAUSS, advance
from rankrise.predict._matrices.factors import FactorSpace, Here
from rankrise.predict._matrices.steps import Linearised, Step
from rankrise.predict._moments import StepTooSmall

VISIBLE = 1e-5
"""A column below this size changes a product by less than 1e-10."""

_SPREAD = 16.0
"""The e-foldings by which the columns of a product may drift apart before they are rotated."""
_BEND = 0.1
"""How much the gradient may change within a step of the linear flow, times its length."""
_GROWTH = 0.7
"""The e-foldings by which an active column may grow between two moments that are kept."""
_OVERSHOOT = 1.5
_SMALLEST_STEP = 1e-13


@dataclass(frozen=True, eq=False)
class Moment:
    """A point of the flow: time t, the loss, flat products and their rates, log singular values per product.

    `drift` is the largest fraction of a column by which the conserved quantity had to be restored, and
    `accepted` marks the ends of steps.
    """

    time: float
    loss: float
    products: Tensor
    rates: Tensor
    log_singular_values: list[Tensor]
    drift: float
    accepted: bool


def follow_columns(loss: Loss, columns: list[Columns], until: float, tolerance: float) -> Iterator[Moment]:
    """Follow `W' = M(A) W` from `columns`, which it changes, to time `until`.

    `tolerance` is the error of a step, relative in every column. Raises `StepTooSmall` when no step succeeds.
    """
    time, size = 0.0, math.inf
    for many in columns:
        many.order()
    space, here = _active(loss, columns)
    if not (torch.isfinite(here.value) and torch.isfinite(here.rate).all()):
        raise StepTooSmall
    yield _moment(0.0, float(here.value), here.gradient, loss, columns, 0.0)
    while time < until:
        pace = max(float(torch.linalg.matrix_norm(g, 2)) for g in loss.split(here.gradient))
        if space.size and size == math.inf:
            size = 0.1 / max(pace, 1e-300)
        linear = Linearised(space, here) if space.size else None
        smallest = max(_SMALLEST_STEP * time, 1e-300)
        size = min(size, until - time, _time_to_visible(loss, here.gradient, columns, space.ranks))
        while True:
            if time + size > until * (1 - 1e-12):
                size = until - time
            if size <= smallest:
                raise StepTooSmall
            tried = _attempt(loss, space, here, linear, columns, size, pace, tolerance)
            if isinstance(tried, _Taken):
                break
            size *= tried
        columns[:] = tried.columns
        for moment in tried.moments:
            yield replace(moment, time=time + moment.time)
        time = until if time + size >= until else time + size
        space, here = _active(loss, columns)
        yield _moment(time, float(here.value), here.gradient, loss, columns, tried.drift)
        size = size * tried.growth if space.size else math.inf


class _Taken(NamedTuple):
    """A step that was accepted: the columns at its end, the `drift` restored there, the moments on the way,
    whose times count from its beginning, and by how much the next step may be longer."""

    columns: list[Columns]
    drift: float
    moments: list[Moment]
    growth: float


def _attempt(
    loss: Loss,
    space: FactorSpace,
    here: Here,
    linear: Linearised | None,
    columns: list[Columns],
    size: float,
    pace: float,
    tolerance: float,
) -> float | _Taken:
    """A step of length `size`: what came of it, or the fraction of `size` to try instead."""
    step: Step | None = None
    error = 0.0
    if linear is not None:
        step = linear.step(size, tolerance)
        sizes = torch.maximum(space.column_sizes(here.x), space.column_sizes(step.end))
        error = float((space.column_sizes(step.error) / sizes).max()) / tolerance
        if error <= 1:
            step, missed = step.with_end(space.here(step.end))
            inactive = any(many.count > rank for many, rank in zip(columns, space.ranks, strict=True))
            error = max(error, size * missed / tolerance) if inactive else error
        if not error <= 1:
            return max(0.2, 0.9 * error**-0.25) if math.isfinite(error) else 0.2
    moved = [copy.deepcopy(many) for many in columns]
    moments = _carry_along(loss, space, here, step, moved, size, pace)
    for many, rank in zip(moved, space.ranks, strict=True):
        if many.count > rank and float(many.logs[rank:].max()) > math.log(VISIBLE) + _OVERSHOOT:
            return 0.5
    drift = 0.0
    for many in moved:
        many.rotate()
        drift = max(drift, many.restore())
    return _Taken(moved, drift, moments, min(5.0, 0.9 * max(error, 1e-8) ** -0.25))


def _carry_along(
    loss: Loss,
    space: FactorSpace,
    here: Here,
    step: Step | None,
    columns: list[Columns],
    size: float,
    pace: float,
) -> list[Moment]:
    """Move all columns through a step, the inactive ones in parts; the moments on the way."""
    moments: list[Moment] = []
    growing = float((space.column_sizes(here.rate) / space.column_sizes(here.x)).max()) if step else 0.0
    longest = min(_SPREAD / max(2 * pace, 1e-300), _GROWTH / max(growing, 1e-300), size)
    tau, spread, drift, gradient = 0.0, 0.0, 0.0, here.gradient
    value, products = float(here.value), space.products(here.x)
    while tau < size:
        part = min(longest, size - tau)
        later = gradient if step is None else step.gradient_at(tau + part)
        while step is not None and float((later - gradient).norm()) * part > _BEND and part > 1e-3 * size:
            part /= 2
            later = step.gradient_at(tau + part)
        if tau + part > size * (1 - 1e-9):
            part = size - tau
        points = [gradient if step is None else step.gradient_at(tau + gauss * part) for gauss in GAUSS]
        for many, rank, early, late in zip(
            columns, space.ranks, loss.split(points[0]), loss.split(points[1]), strict=True
        ):
            if many.count > rank:
                rest = many.directions[:, rank:]
                many.set_columns(
                    slice(rank, None), advance(rest, many.rows, early, late, part), many.logs[rank:]
                )
        tau, spread, before, gradient = tau + part, spread + 2 * pace * part, gradient, later
        ended = tau >= size
        if step is not None:
            for many, rank, active in zip(columns, space.ranks, space.split(step.at(tau)), strict=True):
                many.set_columns(slice(0, rank), active)
            moved = space.products(step.at(tau))
            # The loss falls by G dA; the trapezoidal rule on the way, the loss itself at the ends of steps.
            value, products = value + float((before + gradient) @ (moved - products)) / 2, moved
        if not ended and spread > _SPREAD / 2:
            for many, rank in zip(columns, space.ranks, strict=True):
                many.separate(rank)
                many.rotate(rank)
                drift = max(drift, many.restore(rank))
            spread = 0.0
        if not ended:
            moments.append(_moment(tau, value, gradient, loss, columns, drift, accepted=False))
    return moments


def _active(loss: Loss, columns: list[Columns]) -> tuple[FactorSpace, Here]:
    """The visible columns, which come first, and the gradient that they set."""
    ranks = tuple(int((many.logs > math.log(VISIBLE)).sum()) for many in columns)
    space = FactorSpace(loss, ranks)
    x = space.pack([many.factors(rank) for many, rank in zip(columns, ranks, strict=True)])
    return space, space.here(x)


def _time_to_visible(loss: Loss, gradient: Tensor, columns: list[Columns], ranks: tuple[int, ...]) -> float:
    """The time after which the next column may become visible, if the gradient stays: a little later."""
    shortest = math.inf
    for many, rank, part in zip(columns, ranks, loss.split(gradient), strict=True):
        if many.count > rank:
            rate = float(torch.linalg.matrix_norm(part, 2))
            missing = math.log(VISIBLE) + 0.1 - float(many.logs[rank:].max())
            shortest = min(shortest, missing / max(rate, 1e-300))
    return shortest


def _moment(
    time: float,
    value: float,
    gradient: Tensor,
    loss: Loss,
    columns: list[Columns],
    drift: float,
    accepted: bool = True,
) -> Moment:
    products, rates = [], []
    for many, slope in zip(columns, loss.split(gradient), strict=True):
        scaled = many.directions * many.logs.exp()
        up, down = scaled[: many.rows], scaled[many.rows :]
        products.append((up @ down.T).flatten())
        rates.append(-(slope @ down @ down.T + up @ up.T @ slope).flatten())
    logs = [many.log_singular_values() for many in columns]
    return Moment(time, value, torch.cat(products), torch.cat(rates), logs, drift, accepted)
