"""Gradient flow of full matrices at any initialisation scale, one accepted step at a time.

Columns above the size `VISIBLE` are active: they make up the products, and their flow is stiff and nonlinear
(`active.py`). All others feel the gradient that the active ones set, but do not change it: they follow a
linear equation (`columns.py`) on logarithmic scales. A plateau is then a single step, up to where the
next column becomes visible, and the cost of a transition does not depend on alpha.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from rankrise.predict._loss import Loss
from rankrise.predict._matrices.active import FactorSpace, Linearised, Step, next_length
from rankrise.predict._matrices.columns import GAUSS, Columns, advance
from rankrise.predict._paths import Moment, StepTooSmall

VISIBLE = 1e-5  # a column below this size changes a product by less than 1e-10

_SPREAD = 16.0  # the e-foldings by which the columns of a product may drift apart before they are rotated
_BEND = 0.1  # how much the gradient may change within a step of the linear flow, times its length
_GROWTH = 0.7  # the e-foldings by which an active column may grow between two moments that are kept
_OVERSHOOT = 1.5  # the e-foldings by which a column too small to see may grow beyond that within a step
_SMALLEST_STEP = 1e-13


def follow_columns(loss: Loss, columns: list[Columns], until: float, tolerance: float) -> Iterator[Moment]:
    """Follow `W' = M(A) W` from `columns` to time `until`.

    `tolerance` is the error of a step, relative in every column. Raises `StepTooSmall` when no step succeeds.
    """
    here = _State(loss, columns)
    if not (here.point.value.isfinite() and here.point.rate.isfinite().all()):
        raise StepTooSmall
    yield here.moment()
    time, size = 0.0, math.inf
    while time < until:
        linear = Linearised(here.space, here.point) if here.space.size else None
        if linear is not None and size == math.inf:
            size = 0.1 / here.pace
        size = min(size, until - time, here.time_to_visible())
        while True:
            if time + size > until * (1 - 1e-12):
                size = until - time
            if size <= max(_SMALLEST_STEP * time, 1e-300):
                raise StepTooSmall
            step, error = here.step(linear, size, tolerance)
            if error <= 1:
                moved, between = here.carry(step, size)
                hidden = [many.logs[rank:] for many, rank in zip(moved, here.ranks, strict=True)]
                if not (torch.cat(hidden) > math.log(VISIBLE) + _OVERSHOOT).any():
                    break
            size *= 0.5 if error <= 1 else next_length(error)
        for many in moved:
            many.rotate()
            many.restore()
        for moment in between:
            yield replace(moment, time=time + moment.time)
        time = until if time + size >= until else time + size
        here = _State(loss, moved)
        yield here.moment(time)
        size = size * next_length(error) if here.space.size else math.inf


class _State:
    """The columns of all products, the visible ones of which come first and set the gradient."""

    def __init__(self, loss: Loss, columns: list[Columns]) -> None:
        self.loss, self.columns = loss, columns
        self.ranks = tuple(int((many.logs > math.log(VISIBLE)).sum()) for many in columns)
        self.space = FactorSpace(loss, self.ranks)
        factors = [many.factors[:, :rank] for many, rank in zip(columns, self.ranks, strict=True)]
        self.point = self.space.here(self.space.pack(factors))
        norms = [float(torch.linalg.matrix_norm(part, 2)) for part in loss.split(self.point.gradient)]
        self._norms, self.pace = norms, max([*norms, 1e-300])

    def time_to_visible(self) -> float:
        """The time after which the next column may become visible, if the gradient stays: a little later."""
        shortest = math.inf
        for many, rank, norm in zip(self.columns, self.ranks, self._norms, strict=True):
            if len(many.logs) > rank:
                missing = math.log(VISIBLE) + 0.1 - float(many.logs[rank:].max())
                shortest = min(shortest, missing / max(norm, 1e-300))
        return shortest

    def step(self, linear: Linearised | None, size: float, tolerance: float) -> tuple[Step | None, float]:
        """A step of the active columns, and its error as a fraction of what is allowed."""
        if linear is None:
            return None, 0.0
        step = linear.step(size, tolerance)
        error = step.error / tolerance
        if error <= 1:
            # The true gradient at the end, and how far it is from what was foreseen.
            missed = self.space.here(step.end).gradient - step.gradient_at(size)
            step = replace(step, remainders=(step.remainders[0], step.remainders[1] + missed))
            if any(len(many.logs) > rank for many, rank in zip(self.columns, self.ranks, strict=True)):
                error = max(error, size * float(missed.norm()) / tolerance)
        return step, error

    def carry(self, step: Step | None, size: float) -> tuple[list[Columns], list[Moment]]:
        """All columns after a step, the inactive ones moved in parts, and the moments within it."""
        loss, space, ranks, gradient = self.loss, self.space, self.ranks, self.point.gradient
        columns, moments = [copy.deepcopy(many) for many in self.columns], list[Moment]()
        growing = space.pace(self.point)
        longest = min(_SPREAD / (2 * self.pace), _GROWTH / max(growing, 1e-300), size)
        value, products = float(self.point.value), space.products(self.point.x)

        def gradient_at(tau: float) -> Tensor:
            return gradient if step is None else step.gradient_at(tau)

        tau, spread = 0.0, 0.0
        while tau < size:
            part = min(longest, size - tau)
            later = gradient_at(tau + part)
            while float((later - gradient).norm()) * part > _BEND and part > 1e-3 * size:
                part /= 2
                later = gradient_at(tau + part)
            if tau + part > size * (1 - 1e-9):
                part = size - tau
            early, late = (loss.split(gradient_at(tau + gauss * part)) for gauss in GAUSS)
            for number, (many, rank) in enumerate(zip(columns, ranks, strict=True)):
                if len(many.logs) > rank:
                    rest = many.directions[:, rank:]
                    rest = advance(rest, many.rows, early[number], late[number], part)
                    many.set_columns(slice(rank, None), rest, many.logs[rank:])
            tau, spread, before, gradient = tau + part, spread + 2 * self.pace * part, gradient, later
            if step is not None:
                x = step.at(tau)
                for many, rank, active in zip(columns, ranks, space.split(x), strict=True):
                    many.set_columns(slice(0, rank), active)
                # The loss falls by G dA; by the trapezoidal rule, until the next end of a step.
                moved = space.products(x)
                value, products = value + float((before + gradient) @ (moved - products)) / 2, moved
            if tau < size:
                if spread > _SPREAD / 2:
                    for many, rank in zip(columns, ranks, strict=True):
                        many.separate(rank)
                        many.rotate(rank)
                        many.restore(rank)
                    spread = 0.0
                moments.append(Moment(tau, value, *_observed(loss, columns, gradient)))
        return columns, moments

    def moment(self, time: float = 0.0) -> Moment:
        """The end of a step."""
        return Moment(time, float(self.point.value), *_observed(self.loss, self.columns, self.point.gradient))


def _observed(loss: Loss, columns: list[Columns], gradient: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The flat products, their rates and the logarithms of their singular values."""
    products, rates = [], []
    for many, slope in zip(columns, loss.split(gradient), strict=True):
        up, down = many.factors[: many.rows], many.factors[many.rows :]
        products.append((up @ down.T).flatten())
        rates.append(-(slope @ down @ down.T + up @ up.T @ slope).flatten())
    logs = [many.log_singular_values() for many in columns]
    return torch.cat(products), torch.cat(rates), logs
