"""Diagonal networks: the exact coordinates of their flow, its integration, and their plateaus.

The gap `c = u^2 - v^2` never changes (Lemma 4.1), so each pair (u, v) moves on a hyperbola, and
`z = arcsinh(2uv/|c|)` says where. In `z` the flow `u' = v*g, v' = u*g` is

    dz/dt = 2 g(a),    a = (|c|/2) sinh(z) = exp(lift + z) - exp(lift - z),    lift = log(|c|/4),

and the initialisation scale enters only through `lift`, so nothing underflows. If `|u| = |v|`, `a` keeps its
sign for ever, one of the two exponentials is absent, and `z` is `log|a|` times that sign.

The Jacobian of the flow in z is `-2 H(a) diag(da/dz)`. Its second factor is next to nothing for an inactive
coordinate, so only the columns of active ones are computed.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import torch
from scipy.integrate import BDF
from torch import Tensor

from rankrise.predict._loss import Loss
from rankrise.predict._paths import Moment, StepTooSmall

_RTOL = 1e-13  # next to nothing: errors count in z itself, and Newton's method stops at 2 % of the tolerance
_ACTIVE = 1e-4
_DOORSTEP = 1e-2
_SEED_SIZE = 1e-4
_ROUGH = 0.1  # the path needs no more accuracy than it takes to stay in its basin
_ALMOST_STILL = 0.1
_ENDLESS = 1e-12
_STILL = 1e-7
_VANISHING = 1e-4
_CLOSE = 0.3
_MOST_STEPS = 400
_MOST_NEWTON_STEPS = 20


class Coordinates(NamedTuple):
    """The constants of motion of a flow, (p,) each.

    `lift` is `log(|c|/4)`; `rising` and `falling` are 1 where that exponential is present, else 0; `swapped`
    marks `|u| < |v|`; `sign` is that of the larger of the two weights.
    """

    lift: Tensor
    rising: Tensor
    falling: Tensor
    swapped: Tensor
    sign: Tensor

    @staticmethod
    def of_weights(u: Tensor, v: Tensor, log_alpha: float = 0.0) -> tuple["Coordinates", Tensor]:
        """The coordinates of weights `exp(log_alpha) * (u, v)`, and their place `z` (p,) in them."""
        product, gap = u * v, (u - v).abs() * (u + v).abs()
        tied, one = gap == 0, torch.ones_like(gap)
        gap, size = torch.where(tied, one, gap), torch.where(tied, product.abs(), one)
        swapped = u.abs() < v.abs()
        coordinates = Coordinates(
            lift=torch.where(tied, 0.0, gap.log() + 2 * log_alpha - math.log(4)),
            rising=torch.where(tied & (product < 0), 0.0, one),
            falling=torch.where(tied & (product > 0), 0.0, one),
            swapped=swapped,
            sign=torch.where(swapped, v.sign(), u.sign()),
        )
        z = torch.where(tied, product.sign() * (size.log() + 2 * log_alpha), torch.asinh(2 * product / gap))
        return coordinates, z

    def product(self, z: Tensor) -> Tensor:
        """`a = u * v` at `z` (..., p)."""
        rising, falling = self._exponentials(z)
        return rising - falling

    def slope(self, z: Tensor) -> Tensor:
        """`da/dz = (u^2 + v^2)/2` at `z` (..., p): next to nothing for a coordinate that is not active."""
        rising, falling = self._exponentials(z)
        return rising + falling

    def level(self, magnitude: float) -> tuple[Tensor, Tensor]:
        """The `z` (p,) at which `a` is `-magnitude` and `+magnitude`; infinite for a sign it never has."""
        # exp(lift + z) - exp(lift - z) = m has z = arcsinh(m / (2 exp(lift))), taken in logarithms when that
        # overflows.
        ratio = math.log(magnitude / 2) - self.lift
        untied = torch.where(ratio > 20, ratio + math.log(2), torch.asinh(torch.exp(ratio.clamp(max=20))))
        height = torch.where(self.rising != self.falling, math.log(magnitude), untied)
        low = -torch.where(self.falling == 0, math.inf, height)
        return low, torch.where(self.rising == 0, math.inf, height)

    def weights(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The weights (u, v) at `z`, (p,) each; those too small for a float are zero."""
        rising, falling = self._exponentials(z, root=2)
        larger, smaller = self.sign * (rising + falling), self.sign * (rising - falling)
        return torch.where(self.swapped, smaller, larger), torch.where(self.swapped, larger, smaller)

    def _exponentials(self, z: Tensor, root: int = 1) -> tuple[Tensor, Tensor]:
        """The two exponentials, or their roots; an absent one is 0, however large it would be."""
        rising, falling = torch.exp((self.lift + z) / root), torch.exp((self.lift - z) / root)
        return torch.where(self.rising == 0, 0.0, rising), torch.where(self.falling == 0, 0.0, falling)


def integrate(
    loss: Loss, coordinates: Coordinates, z: Tensor, until: float, tolerance: float
) -> Iterator[Moment]:
    """Follow `dz/dt = 2 g(a(z))` from `z` at time 0 to `until`, and yield every accepted moment.

    `tolerance` bounds the error of a step in every coordinate of z: for an active one, the relative error of
    `a`. Raises `StepTooSmall` when no step succeeds.
    """
    place = z.numpy()
    equation = _Equation(loss, coordinates, z, reach=until)
    moment = equation.moment(0.0, place)
    if not (math.isfinite(moment.loss) and moment.rate.isfinite().all()):
        raise StepTooSmall
    yield moment

    # scipy bounds the root mean square of the coordinates' errors: this bounds each of them.
    atol = tolerance / math.sqrt(len(place))
    solver = BDF(equation.rate, 0.0, place, until, rtol=_RTOL, atol=atol, jac=equation.jacobian)
    while solver.status == "running":
        solver.max_step = equation.longest_step(moment)
        with numpy.errstate(all="ignore"):  # a trial step that overshoots is not finite, and is shortened
            solver.step()
        if solver.status == "failed":
            raise StepTooSmall
        moment = equation.moment(solver.t, solver.y)
        yield moment
        equation.reach = solver.step_size
        equation.raise_ceiling(moment.place)


class _Equation:
    """`dz/dt = 2 g(a)` and its Jacobian, for a solver that works in NumPy.

    No trial value of `|a|` passes a ceiling: a plateau's long step overshoots, and its exponential would
    explode. `reach` is about the length of a step. The last evaluation and the last Jacobian are kept.
    """

    def __init__(self, loss: Loss, coordinates: Coordinates, z: Tensor, reach: float) -> None:
        self.loss, self.coordinates, self.reach = loss, coordinates, reach
        self._ceiling, self._doorstep = 2.0, coordinates.level(_DOORSTEP)
        self._jacobian = torch.zeros(len(z), len(z), dtype=z.dtype)
        self.raise_ceiling(z)
        self.rate(0.0, z.numpy())

    def raise_ceiling(self, z: Tensor) -> None:
        """Let trial values exceed those at `z` by a factor of 4."""
        self._ceiling = max(self._ceiling, 4 * float(self.coordinates.product(z).abs().max()))
        self._low, self._high = self.coordinates.level(self._ceiling)

    def longest_step(self, moment: Moment) -> float:
        """The time until a coordinate reaches the doorstep of activity or the ceiling at its present rate."""
        times = [math.inf]
        for low, high in (self._doorstep, (self._low, self._high)):
            distance = torch.where(moment.rate > 0, high - moment.place, moment.place - low)
            ahead = (distance > 0.5) & (moment.rate != 0)
            times += (distance / moment.rate.abs())[ahead].tolist()
        return min(times)

    def rate(self, _time: float, z: numpy.ndarray) -> numpy.ndarray:
        self._z = z.copy()
        self._a = self.coordinates.product(self._clipped(z))
        value, gradient = self.loss.value_and_gradient(self._a)
        self._loss, self._rate = value, torch.where(value.isfinite(), -2 * gradient, math.nan)
        return self._rate.numpy()

    def jacobian(self, _time: float, z: numpy.ndarray) -> numpy.ndarray:
        """Entries that are not finite become zero: Newton's method then fails, and the step is shortened."""
        clipped = self._clipped(z)
        slope = self.coordinates.slope(clipped)
        active = (slope * self.reach > _ACTIVE).nonzero()[:, 0]
        self._jacobian = torch.zeros_like(self._jacobian)
        if len(active):
            hessian = self.loss.hessian(self.coordinates.product(clipped), active, rough=True)
            self._jacobian[:, active] = (-2 * slope[active] * hessian).nan_to_num(0.0, 0.0, 0.0)
        return self._jacobian.numpy()

    def moment(self, time: float, z: numpy.ndarray) -> Moment:
        """The moment at `z`, to first order in Newton's small correction since the last evaluation."""
        here = torch.from_numpy(z)
        rate = self._rate + self._jacobian @ (here - torch.from_numpy(self._z))
        loss = self._loss - (self._rate / 2) @ (self.coordinates.product(here) - self._a)
        return Moment(time, float(loss), here, rate)

    def _clipped(self, z: numpy.ndarray) -> Tensor:
        return torch.clamp(torch.from_numpy(z), self._low, self._high)


class DiagonalPlateau:
    """A point of rest, `point` (p,) with its loss `value`, and the `exponents` (p,) of the coordinates.

    They are 1 - b in Eq. 8, where `alpha^b` is the size of u + v: a coordinate is active at 1 (positive) or
    -1 (negative). So b starts at 1; the paper's line 1 says 0, a misprint. `forces` (p,) say how they grow.
    """

    mixing, clear = None, True

    def __init__(self, loss: Loss) -> None:
        self._loss, self.owners, self.exponents = loss, range(loss.size), loss.zero()
        self._stay(loss.zero())
        self.flat = not self.forces.any()

    def move_on(self, winner: int) -> dict[str, Any] | None:
        """Let a coordinate become active, and follow the flow to its rest: a `Stage`'s fields, or None."""
        sign = int(self.forces[winner].sign())
        self.exponents[winner] = sign
        start = self.point.clone()
        start[winner] = sign * _SEED_SIZE
        limit = land(self._loss, start)
        if limit is None:
            return None
        left = ((self.point != 0) & (limit == 0)).nonzero()[:, 0]
        self._stay(limit)
        return {"sign": sign, "rank": 1, "left": tuple(left.tolist())}

    def _stay(self, point: Tensor) -> None:
        value, gradient = self._loss.value_and_gradient(point)
        self.point, self.value, self.forces = point, float(value), torch.where(point == 0, -gradient, 0.0)


def land(loss: Loss, start: Tensor) -> Tensor | None:
    """The limit (p,) of the flow of `a' = 2|a| g(a)` from `start` (p,), or None if it finds none.

    This is gradient flow on u and v with `|u| = |v|`, as on every stationary point of a vanishing
    initialisation. A coordinate that decays to nothing is exactly zero in the result.
    """
    support = start.nonzero()[:, 0]
    part, few = loss.restricted(support), start[support]
    size, pace = few.abs().sqrt(), 0.0
    coordinates, z = Coordinates.of_weights(size, size * few.sign())
    try:
        for count, moment in enumerate(integrate(part, coordinates, z, until=1e300, tolerance=_ROUGH)):
            point = coordinates.product(moment.place)
            small = point.abs() < _VANISHING * max(1.0, float(point.abs().max()))
            decaying = small & (moment.rate * few < 0)
            moving = float(torch.where(decaying, 0.0, moment.rate).abs().max())
            pace = max(pace, moving)
            if moving <= _ALMOST_STILL * pace:
                limit = _polish(part, torch.where(decaying, 0.0, point))
                if limit is not None:
                    return torch.zeros_like(start).index_put((support,), limit)
            if count >= _MOST_STEPS or moving <= _ENDLESS * pace:
                return None
    except StepTooSmall:
        return None
    return None


def _polish(loss: Loss, point: Tensor) -> Tensor | None:
    """The stationary point next to `point` with the same support, if it is close and attracts the flow."""
    support = point.nonzero()[:, 0]
    factor, began, last = None, point, math.inf
    for _ in range(_MOST_NEWTON_STEPS):
        if factor is None:
            factor, failed = torch.linalg.cholesky_ex(loss.hessian(point, support, rough=True)[support])
            if failed or not len(support):
                return None
        _, gradient = loss.value_and_gradient(point)
        move = torch.cholesky_solve(-gradient[support, None], factor)[:, 0]
        point = point.index_add(0, support, move)
        if ((point - began)[support].abs() > _CLOSE * began[support].abs()).any():
            return None
        size = float(move.abs().max())
        if size <= _STILL * float(point.abs().max()):
            return point
        if not size < 0.3 * last:
            factor = None
        last = size
    return None
