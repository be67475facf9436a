"""Gradient flow of a diagonal network at any initialisation scale, exactly (Eq. 4 in the coordinates of
Lemma 4.1).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array, as_tensor
from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._coordinates import Coordinates
from rankrise.predict._ending import Ending, StepTooSmall, not_finite, out_of_steps, reached
from rankrise.predict._hermite import hermite
from rankrise.predict._integrate import FlowPoint, integrate
from rankrise.predict._loss import Loss, LossFunction, checked_loss


@dataclass(frozen=True, eq=False)
class Flow:
    """A solved gradient flow, in rescaled time `t / log(1/alpha)`.

    `times` (n,) are the accepted steps, `places` (n, p) the exact coordinate z there, `rates` (n, p) its
    derivative in rescaled time, `losses` (n,), `log_inverse_alpha` the unit of time. `ending` says how the
    solve ended and `message` what to do about it. `gradients` and `hessian_columns` are what it cost.
    """

    times: Tensor
    places: Tensor
    rates: Tensor
    losses: Tensor
    log_inverse_alpha: float
    coordinates: Coordinates
    ending: Ending
    message: str
    gradients: int
    hessian_columns: int

    @cached_property
    def values(self) -> Tensor:
        """`a = u * v` at the accepted steps, (n, p)."""
        return self.coordinates.product(self.places)

    @property
    def tied(self) -> Tensor:
        """Coordinates (p,) with `|u0| = |v0|`: their sign never changes, and the theorem does not cover
        them.
        """
        return self.coordinates.tied

    def at(self, time: float | Array) -> Tensor:
        """`a` at a rescaled time within the flow, (p,), or at several, (m, p): between steps by a cubic
        through places and rates.
        """
        return self.coordinates.product(self.place_at(time))

    def place_at(self, time: float | Array) -> Tensor:
        """The exact coordinate z at a rescaled time, (p,), or at several, (m, p)."""
        asked = as_tensor("time", time, self.times.device).double()
        last = float(self.times[-1])
        outside = (asked < 0) | (asked > last * (1 + 1e-12)) | asked.isnan()
        if outside.any():
            wrong = float(asked[outside].flatten()[0])
            raise RankriseError(f"time is {wrong:g}, but this flow goes from 0 to {last:g}: {self.message}")
        flat = asked.reshape(-1)
        after = torch.searchsorted(self.times, flat).clamp(1, len(self.times) - 1)
        before = after - 1
        step = (self.times[after] - self.times[before])[:, None]
        part = ((flat - self.times[before])[:, None] / step).clamp(0, 1)
        ends, rates = ((column[before], column[after]) for column in (self.places, self.rates))
        z: Tensor = hermite(part, step, ends, rates)
        return z.reshape(*asked.shape, -1)

    def part(self, loss: Loss, start: float, end: float) -> "Flow":
        """The flow from `start` to `end`, its times counted from `start`; what lies between steps is
        interpolated.
        """
        inside = (self.times > start) & (self.times < end)
        ends = self.times.new_tensor([start, end])
        places = self.place_at(ends)
        at_ends = [loss.value_and_gradient(a) for a in self.coordinates.product(places)]
        rates = torch.stack([-2 * self.log_inverse_alpha * gradient for _, gradient in at_ends])
        losses = torch.stack([value for value, _ in at_ends])
        return replace(
            self,
            times=torch.cat([ends[:1], self.times[inside], ends[1:]]) - start,
            places=torch.cat([places[:1], self.places[inside], places[1:]]),
            rates=torch.cat([rates[:1], self.rates[inside], rates[1:]]),
            losses=torch.cat([losses[:1], self.losses[inside], losses[1:]]),
            message=f"A part of a flow, of {end - start:g} in rescaled time.",
        )

    def weights_at(self, time: float | Array) -> tuple[Tensor, Tensor]:
        """The weights (u, v) at a rescaled time, (p,) each, or at several, (m, p); zero below 1e-308."""
        return self.coordinates.weights(self.place_at(time))

    def activation_times(self, threshold: float = 1e-3) -> Tensor:
        """The rescaled time (p,) at which each `|a|` first reaches `threshold`; inf where it never does."""
        first = torch.full((self.places.shape[1],), math.inf, dtype=torch.float64)
        for coordinate, times in self.rises(threshold).items():
            first[coordinate] = times[0]
        return first

    def rises(self, threshold: float = 1e-3) -> dict[int, list[float]]:
        """The rescaled times at which `|a|` rises above `threshold`, in order, by coordinate; one that never
        does is not there.
        """
        times: dict[int, list[float]] = {}
        for crossing in self.crossings(threshold):
            if crossing.upward:
                times.setdefault(crossing.coordinate, []).append(crossing.time)
        return times

    def crossings(self, threshold: float = 1e-3) -> list["Crossing"]:
        """Every time an `|a|` rises above `threshold` or falls below it, in order of time."""
        if not threshold > 0:
            raise RankriseError(
                f"threshold is {threshold}: pass the size from which a coordinate is active, such as 1e-3."
            )
        low, high = self.coordinates.level(threshold)
        found = [
            Crossing(0.0, int(i), True)
            for i in ((self.places[0] >= high) | (self.places[0] <= low)).nonzero()[:, 0]
        ]
        for level, side in ((high, 1), (low, -1)):
            above = (side * (self.places - level) >= 0).cpu()
            steps, coordinates = (above[1:] != above[:-1]).nonzero(as_tuple=True)
            times = self._cross(steps, coordinates, level)
            upward = above[steps + 1, coordinates].tolist()
            found += map(Crossing, times.tolist(), coordinates.tolist(), upward)
        return sorted(found, key=lambda crossing: crossing.time)

    def to_dict(self) -> dict[str, Any]:
        """The flow as JSON has it: its steps, and when each coordinate became active."""
        return {
            "log_inverse_alpha": self.log_inverse_alpha,
            "ending": self.ending,
            "message": self.message,
            "gradients": self.gradients,
            "hessian_columns": self.hessian_columns,
            "activation_times": self.activation_times().tolist(),
            "times": self.times.tolist(),
            "losses": self.losses.tolist(),
            "values": self.values.tolist(),
        }

    def _cross(self, steps: Tensor, coordinates: Tensor, level: Tensor) -> Tensor:
        """Where, within each of `steps`, its coordinate meets its level: the root of the cubic, by
        bisection.
        """
        steps, coordinates = steps.to(level.device), coordinates.to(level.device)
        start, step = self.times[steps], self.times[steps + 1] - self.times[steps]
        ends = (self.places[steps, coordinates], self.places[steps + 1, coordinates])
        slopes = (self.rates[steps, coordinates], self.rates[steps + 1, coordinates])
        left, right = torch.zeros_like(step), torch.ones_like(step)
        began_above = ends[0] > level[coordinates]
        for _ in range(60):
            middle = (left + right) / 2
            before = (hermite(middle, step, ends, slopes) > level[coordinates]) == began_above
            left, right = torch.where(before, middle, left), torch.where(before, right, middle)
        return start + right * step


@dataclass(frozen=True)
class Crossing:
    """A coordinate whose size passed a threshold, upward or downward, at a rescaled time."""

    time: float
    coordinate: int
    upward: bool


@typed
def gradient_flow(
    loss: LossFunction,
    u0: Array,
    v0: Array,
    log10_alpha: float | Array = -32.0,
    until: float = 1.0,
    tolerance: float = 1e-5,
    max_steps: int = 100_000,
    device: torch.device | str | None = None,
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """Solve `u' = v*g(u*v), v' = u*g(u*v)` from `alpha * (u0, v0)` to the rescaled time `until` (Eq. 4), with
    `g = -dL/da`.

    The scale is given as its logarithm, so 10**-1000 is as good as 0.1; p numbers give each coordinate its
    own, and rescaled time then belongs to the largest. `tolerance` bounds the error of a step in
    `log|a| / log(1/alpha)`: at the default, activation times are good to about 1e-4. `progress` is called
    with the rescaled time reached.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], log10_alpha=-1000, until=1.5)
    >>> flow.activation_times(), flow.at(0.75)
    (tensor([0.99..., 0.49...], dtype=torch.float64), tensor([ 0.0000, -2.0000], dtype=torch.float64))
    """
    u, v = _checked_start(u0, v0, device)
    scale = _checked_scale(log10_alpha, len(u), u.device)
    if not (isinstance(until, int | float) and 0 < until < math.inf):
        raise RankriseError(f"until is {until!r}: pass the rescaled time to stop at, a number above 0.")
    if not 0 < tolerance < 1:
        raise RankriseError(
            f"tolerance is {tolerance!r}: pass the error allowed in a step, between 0 and 1, such as 1e-5."
        )
    if max_steps < 1:
        raise RankriseError(f"max_steps is {max_steps!r}: pass a whole number of 1 or more.")
    declared = getattr(loss, "size", None)
    if declared not in (None, len(u)):
        raise RankriseError(
            f"u0 and v0 have {counted(len(u), 'coordinate')}, but the loss has {declared}: pass as many."
        )
    checked = checked_loss(loss, len(u), u.device)
    coordinates, z = Coordinates.of_weights(u, v, scale * math.log(10))
    return follow(
        checked, coordinates, z, -float(scale.max()) * math.log(10), until, tolerance, max_steps, progress
    )


def follow(
    loss: Loss,
    coordinates: Coordinates,
    z: Tensor,
    unit: float,
    until: float,
    tolerance: float,
    max_steps: int,
    progress: Callable[[float], None] | None = None,
) -> Flow:
    """The flow from the place `z`, in times of `unit`; what was solved is kept, however the solve ends."""
    moments: list[FlowPoint] = []
    ending, message = reached(until)
    # The unit itself would do. A little more at tiny scales, where transitions are far apart and their errors
    # do not add up; and a bound, because an error of log|a| that no activation time shows still shows in the
    # values.
    step_tolerance = tolerance * min(unit * (unit / 74) ** 0.25, 2000.0)
    try:
        for moment in integrate(loss, coordinates, z, until * unit, step_tolerance):
            moments.append(moment)
            if progress is not None:
                progress(moment.time / unit)
            if len(moments) > max_steps and moment.time < until * unit:
                ending, message = out_of_steps(max_steps, moment.time / unit)
                break
    except StepTooSmall:
        ending, message = not_finite(moments[-1].time / unit if moments else 0.0)
    if not moments:
        raise RankriseError(
            "loss or its gradient is not finite at u0 * v0: it must be finite where training starts."
        )
    return Flow(
        times=torch.tensor(
            [min(moment.time / unit, until) for moment in moments], dtype=torch.float64, device=z.device
        ),
        places=torch.stack([moment.z for moment in moments]),
        rates=torch.stack([moment.rate * unit for moment in moments]),
        losses=torch.tensor([moment.loss for moment in moments], dtype=torch.float64, device=z.device),
        log_inverse_alpha=unit,
        coordinates=coordinates,
        ending=ending,
        message=message,
        gradients=loss.gradients,
        hessian_columns=loss.columns,
    )


def _checked_start(u0: Array, v0: Array, device: torch.device | str | None) -> tuple[Tensor, Tensor]:
    u, v = as_tensor("u0", u0), as_tensor("v0", v0)
    for name, weights in (("u0", u), ("v0", v)):
        if weights.ndim != 1 or len(weights) == 0:
            raise RankriseError(
                f"{name} has shape {tuple(weights.shape)}: pass a list of numbers, one per coordinate."
            )
        if not torch.isfinite(weights).all():
            where = int((~torch.isfinite(weights)).nonzero()[0])
            raise RankriseError(
                f"{name} is {float(weights[where])} at coordinate {where}: initial weights must be finite."
            )
    if len(u) != len(v):
        raise RankriseError(f"u0 has {len(u)} coordinates and v0 has {len(v)}: they must be equally long.")
    u, v = (weights.detach().to(dtype=torch.float64, device=device or u.device) for weights in (u, v))
    nothing = ((u == 0) & (v == 0)).nonzero()
    if len(nothing):
        raise RankriseError(
            f"u0 and v0 are both zero at coordinate {int(nothing[0])}, which then never moves: "
            "leave it out, or start one of them off zero."
        )
    return u, v


def _checked_scale(log10_alpha: float | Array, size: int, device: torch.device) -> Tensor:
    if isinstance(log10_alpha, str):
        raise RankriseError(f"log10_alpha is {log10_alpha!r}: pass a number below 0, or one per coordinate.")
    scale = as_tensor("log10_alpha", log10_alpha, device).double()
    if scale.ndim > 1 or (scale.ndim == 1 and len(scale) != size):
        raise RankriseError(
            f"log10_alpha has shape {tuple(scale.shape)}: pass one number, or {size}, one per coordinate."
        )
    if not ((scale < 0) & torch.isfinite(scale)).all():
        raise RankriseError(
            f"log10_alpha is {log10_alpha!r}: pass a finite number below 0, -32 for a scale of 1e-32, "
            "because rescaled time needs alpha < 1."
        )
    return scale
