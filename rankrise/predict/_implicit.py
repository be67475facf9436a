"""The implicit equation of a step, solved by Newton's method with a Hessian that may be old.

In exact coordinates the Jacobian of the flow is `-2 H(a) diag(da/dz)`. The second factor changes by orders of
magnitude while a coordinate becomes active, but is known exactly and for free; the first changes slowly. So
the Hessian is kept until Newton's method slows down, only its columns of active coordinates are ever used,
and only those are computed when each has a price.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.predict._coordinates import Coordinates
from rankrise.predict._loss import Loss

_ACTIVE = 1e-4
_MOST_ITERATIONS = 7
_SLOW = 3
_BEST_CONTRACTION = 0.05


@dataclass
class ImplicitStep:
    """Solves `z = base + reach * 2 g(a(z))` for z, keeping the curvature from one step to the next."""

    loss: Loss
    coordinates: Coordinates
    _columns: Tensor = field(init=False)
    _known: Tensor = field(init=False)
    _fresh: bool = field(default=False, init=False)
    _contraction: float = field(default=0.3, init=False)

    def __post_init__(self) -> None:
        lift = self.coordinates.lift
        whole = self.loss.size if self.loss.whole_curvature else 0
        self._columns = lift.new_zeros(self.loss.size, whole)
        self._known = torch.full_like(lift, -1, dtype=torch.long)

    def rate(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The loss, `a` (p,) and `dz/dt = 2 g(a)` (p,) at z."""
        a = self.coordinates.product(z)
        value, gradient = self.loss.value_and_gradient(a)
        return value, a, -2 * gradient

    def solve(
        self, base: Tensor, reach: float, guess: Tensor, ceiling: float, tolerance: float
    ) -> tuple[Tensor, Tensor] | None:
        """The solution and the loss there, or None where the iteration did not converge from `guess`.

        No trial value of `|a|` passes `ceiling`: a plateau's long step overshoots, and its exponential would
        explode.
        """
        solution = self._iterate(base, reach, guess, ceiling, tolerance)
        if solution is None and not self._fresh:
            self.forget()
            solution = self._iterate(base, reach, guess, ceiling, tolerance)
        return solution

    def forget(self) -> None:
        """Have the curvature computed anew at the next iteration."""
        self._known.fill_(-1)

    def _iterate(
        self, base: Tensor, reach: float, guess: Tensor, ceiling: float, tolerance: float
    ) -> tuple[Tensor, Tensor] | None:
        low, high = self.coordinates.level(ceiling)
        z = torch.clamp(guess, low, high)
        last = math.inf
        for iteration in range(_MOST_ITERATIONS):
            value, a, rate = self.rate(z)
            correction = self._correction(z, a, base + reach * rate - z, reach)
            size = float(correction.abs().max())
            if not math.isfinite(size + float(value)):
                return None
            corrected = torch.clamp(z + correction, low, high)
            if last < math.inf:
                self._contraction = max(0.3 * self._contraction, size / last, _BEST_CONTRACTION)
                if size > 2 * last:
                    return None
            if size * min(1.0, 1.5 * self._contraction) < tolerance:
                if iteration == 0:
                    self._contraction *= 2  # taken on trust, which a second iteration has to renew
                if iteration >= _SLOW:
                    self.forget()
                # The loss where the iteration ended, from its gradient (-rate/2) one small correction before.
                return corrected, value - (rate / 2) @ (self.coordinates.product(corrected) - a)
            z, last = corrected, size
        return None

    def _correction(self, z: Tensor, a: Tensor, residual: Tensor, reach: float) -> Tensor:
        slope = self.coordinates.slope(z)
        active = (slope * reach > _ACTIVE).nonzero()[:, 0]
        if not len(active):
            self._fresh = False
            return residual
        columns = 2 * reach * slope[active] * self.curvature(a, active)
        inner = columns[active] + torch.eye(len(active), dtype=z.dtype, device=z.device)
        solved, failed = torch.linalg.solve_ex(inner, residual[active])
        if failed:
            return torch.full_like(residual, math.inf)
        correction = residual - columns @ solved
        correction[active] = solved
        return correction

    def curvature(self, a: Tensor, active: Tensor) -> Tensor:
        """The columns `active` of the Hessian, (p, len(active)): those known from earlier points, the
        missing ones taken at `a`.
        """
        missing = active[self._known[active] < 0]
        self._fresh = len(missing) == len(active)
        if len(missing):
            if self.loss.whole_curvature:
                missing = torch.arange(self.loss.size, device=a.device)
            found = self.loss.curvature(a, missing)
            if self._fresh:
                self._known.fill_(-1)
                self._columns = found
            else:
                self._columns = torch.cat([self._columns, found], 1)
            self._known[missing] = (
                torch.arange(len(missing), device=a.device) + self._columns.shape[1] - len(missing)
            )
            self._contraction = 0.3
        return self._columns[:, self._known[active]]
