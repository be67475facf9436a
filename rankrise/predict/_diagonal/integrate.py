"""Gradient flow in exact coordinates, step by step: scipy's BDF, guided through long plateaus.

In exact coordinates the Jacobian of the flow is `-2 H(a) diag(da/dz)`. Its second factor is next to nothing
for an inactive coordinate, so only the columns of active ones are computed.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy
import torch
from scipy.integrate import BDF
from scipy.sparse import csc_matrix
from torch import Tensor

from rankrise.predict._diagonal.coordinates import Coordinates
from rankrise.predict._loss import Loss
from rankrise.predict._moments import Moment, StepTooSmall

_RTOL = 1e-13
"""Next to nothing, because errors count in z itself; by scipy's rule, Newton's method then stops at 2 % of
the tolerance."""
_ACTIVE = 1e-4
_DOORSTEP = 1e-2
_SPARSE_FROM = 500
"""From this size on, factors that know which columns of the Jacobian are empty are cheaper."""


def integrate(
    loss: Loss, coordinates: Coordinates, z: Tensor, until: float, tolerance: float
) -> Iterator[Moment]:
    """Follow `dz/dt = 2 g(a(z))` from `z` at time 0 to `until`, and yield every accepted moment.

    `tolerance` bounds the error of a step in every coordinate of z. That is the relative error of an active
    `a`, and, divided by `2 log(1/alpha)`, the error of an activation time. Raises `StepTooSmall` when no step
    succeeds.
    """
    equation, place = _Equation(loss, coordinates, reach=until), z.cpu().numpy()
    equation.raise_ceiling(z)
    equation.rate(0.0, place)
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


@dataclass
class _Equation:
    """`dz/dt = 2 g(a)` and its Jacobian, for a solver that works in NumPy; the loss stays on its device.

    No trial value of `|a|` passes a ceiling: a plateau's long step overshoots, and its exponential would
    explode. `reach` is about the length of a step. The last evaluation and the last Jacobian are kept.
    """

    loss: Loss
    coordinates: Coordinates
    reach: float
    _ceiling: float = field(default=2.0, init=False)

    def raise_ceiling(self, z: Tensor) -> None:
        """Let trial values exceed those at `z` by a factor of 4."""
        self._ceiling = max(self._ceiling, 4 * float(self.coordinates.product(z).abs().max()))
        self._low, self._high = self.coordinates.level(self._ceiling)

    def longest_step(self, moment: Moment) -> float:
        """When the first coordinate, at its present rate, reaches the ceiling, or the doorstep of activity
        before it: a step of a plateau ends there, not deep inside the transition.
        """
        times = [math.inf]
        for low, high in (self.coordinates.level(_DOORSTEP), (self._low, self._high)):
            distance = torch.where(moment.rate > 0, high - moment.place, moment.place - low)
            ahead = (distance > 0.5) & (moment.rate != 0)
            times += (distance / moment.rate.abs())[ahead].tolist()
        return min(times)

    def rate(self, _time: float, z: numpy.ndarray) -> numpy.ndarray:
        self._z = z.copy()
        self._a = self.coordinates.product(self._clipped(z))
        value, gradient = self.loss.value_and_gradient(self._a)
        self._loss, self._rate = value, torch.where(value.isfinite(), -2 * gradient, math.nan)
        return self._rate.cpu().numpy()

    def jacobian(self, _time: float, z: numpy.ndarray) -> numpy.ndarray | csc_matrix:
        """Entries that are not finite become zero: Newton's method then fails, and the step is shortened."""
        clipped = self._clipped(z)
        slope = self.coordinates.slope(clipped)
        active = (slope * self.reach > _ACTIVE).nonzero()[:, 0]
        self._jacobian = torch.zeros(len(z), len(z), dtype=slope.dtype, device=slope.device)
        if len(active):
            columns = (
                -2 * slope[active] * self.loss.hessian(self.coordinates.product(clipped), active, rough=True)
            )
            self._jacobian[:, active] = columns.nan_to_num(0.0, 0.0, 0.0)
        found = self._jacobian.cpu().numpy()
        return found if len(z) < _SPARSE_FROM else csc_matrix(found)

    def moment(self, time: float, z: numpy.ndarray) -> Moment:
        """The moment at `z`, which lies one small correction of Newton's method from the last evaluation: to
        first order in that correction.
        """
        here = torch.from_numpy(z).to(self._a)
        rate = self._rate
        if time > 0:
            rate = rate + self._jacobian @ (here - torch.from_numpy(self._z).to(here))
        loss = self._loss - (self._rate / 2) @ (self.coordinates.product(here) - self._a)
        return Moment(time, float(loss), here, rate)

    def _clipped(self, z: numpy.ndarray) -> Tensor:
        return torch.clamp(torch.from_numpy(z).to(self._low), self._low, self._high)
