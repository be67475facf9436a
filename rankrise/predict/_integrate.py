"""Gradient flow in exact coordinates, step by step: variable steps and orders, made for long plateaus with
sudden ends.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._coordinates import Coordinates
from rankrise.predict._implicit import ImplicitStep
from rankrise.predict._multistep import MAX_ORDER, error_weights, formula

_LARGEST_GROWTH = 2.0
_SAFETY = 0.8
_SMALLEST_STEP = 1e-13


@dataclass(frozen=True, eq=False)
class Moment:
    """One accepted point of the flow: time t, z (p,), dz/dt (p,), and the loss."""

    time: float
    z: Tensor
    rate: Tensor
    loss: float


class StepTooSmall(Exception):
    """The step size fell to nothing: the flow leaves every bound, or the loss is not smooth there."""


def integrate(
    step: ImplicitStep,
    z: Tensor,
    until: float,
    tolerance: float,
    newton: float = 0.02,
    doorstep: float = 1e-2,
) -> Iterator[Moment]:
    """Follow `dz/dt = 2 g(a(z))` from `z` at time 0 to `until`, one accepted moment at a time.

    `tolerance` bounds the error of a step in every coordinate of z, that is the relative error of an active
    `a` and, divided by `2 log(1/alpha)`, the error of an activation time. `newton` is what Newton's method
    may add to it, as a part: little, because the order is chosen from high differences of its results. A step
    of a plateau ends where the next coordinate reaches the size `doorstep`, or one small enough not to bend
    so long a step, rather than deep inside the transition. Raises `StepTooSmall` where no step
    succeeds.
    """
    coordinates = step.coordinates
    value, a, rate = step.rate(z)
    if not (torch.isfinite(value) and torch.isfinite(rate).all()):
        raise StepTooSmall
    yield Moment(0.0, z, rate, float(value))

    time, order, steps_at_order, rejected = 0.0, 1, 0, 0
    size = min(until, 50 * tolerance / max(float(rate.abs().max()), 1e-300))
    # A point of the past, so that the first step has a straight line to guess from.
    smallest = _SMALLEST_STEP * size
    times, points = [0.0, -size], torch.stack([z, z - size * rate])
    ceiling = max(2.0, 4 * float(a.abs().max()))
    last_error, last_size = 1e-3, size
    while time < until:
        size = min(size, until - time)
        size = min(size, _time_to_doorstep(coordinates, points[0], rate, min(doorstep, tolerance / size)))
        if time + size > until * (1 - 1e-12):
            size = until - time
        if size <= max(smallest, _SMALLEST_STEP * time) and size < until - time:
            raise StepTooSmall
        new = time + size
        bdf = formula(times, new, order)
        weights = points.new_tensor([[*bdf.past, 0.0], bdf.guess])
        base, guess = weights @ points[: order + 1]

        solution = step.solve(base, bdf.reach, guess, ceiling, newton * tolerance)
        if solution is None:
            size, order, steps_at_order = 0.3 * size, 1, 0
            continue
        z, value = solution
        error = abs(bdf.error) * float((z - guess).abs().max()) / tolerance
        if error > 1:
            rejected += 1
            size *= max(0.2, _SAFETY * error ** (-1 / (order + 1)))
            if rejected > 1:
                order, steps_at_order = max(1, order - 1), 0
            continue

        time = until if new >= until else new
        rejected, steps_at_order = 0, steps_at_order + 1
        rate = (z - base) / bdf.reach
        times = [time, *times][: MAX_ORDER + 2]
        points = torch.cat([z[None], points])[: MAX_ORDER + 2]
        ceiling = max(ceiling, 4 * float(coordinates.product(z).abs().max()))
        yield Moment(time, z, rate, float(value))
        growth, best = _next_order(times, points, order, steps_at_order, tolerance)
        # Where errors grow from step to step, as in the growth of a new coordinate, they will grow on
        # (Gustafsson).
        trend = (size / last_size) * (last_error / max(error, 1e-10)) ** (1 / (order + 1))
        growth *= min(1.0, max(0.3, trend))
        last_error, last_size = max(error, 1e-3), size
        if best != order:
            order, steps_at_order = best, 0
        if not 1 < growth < 1.1:
            size *= min(_LARGEST_GROWTH, max(0.2, growth))


def _next_order(
    times: list[float], points: Tensor, order: int, steps_at_order: int, tolerance: float
) -> tuple[float, int]:
    """How much longer the next step may be, and at which order: the one of three neighbours that allows
    the longest.
    """
    orders = [
        candidate
        for candidate in (order - 1, order, order + 1)
        if 1 <= candidate <= MAX_ORDER
        and len(times) >= candidate + 2
        and (candidate <= order or steps_at_order > order)
    ]
    weights = [error_weights(times, candidate) for candidate in orders]
    padded = points.new_tensor([row + [0.0] * (len(times) - len(row)) for row in weights])
    errors = ((padded @ points).abs().amax(1) / tolerance).tolist()
    growths = [
        (_SAFETY if candidate == order else 0.9 * _SAFETY) * max(error, 1e-10) ** (-1 / (candidate + 1))
        for candidate, error in zip(orders, errors, strict=True)
    ]
    return max(zip(growths, orders, strict=True))


def _time_to_doorstep(coordinates: Coordinates, z: Tensor, rate: Tensor, doorstep: float) -> float:
    """The time in which the first inactive coordinate grows, at its present rate, to a size of `doorstep`."""
    low, high = coordinates.level(doorstep)
    distance = torch.where(rate > 0, high - z, z - low)
    return float(torch.where((distance > 0.5) & (rate != 0), distance / rate.abs(), math.inf).min())
