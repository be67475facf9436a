"""A plateau of a diagonal network, and the transition to the next: stages A and B of Algorithm 1.

Stage B, where the flow of the active coordinates comes to rest (Eq. 11), is the limit of a flow, not any
stationary point. The flow is followed, roughly, until it almost stops; Newton's method takes the last small
way, and its result counts only if the flow around it ends there too.
"""

import math
from typing import Any

import torch
from torch import Tensor

from rankrise.predict._diagonal.coordinates import Coordinates
from rankrise.predict._diagonal.integrate import integrate
from rankrise.predict._loss import Loss
from rankrise.predict._moments import StepTooSmall
from rankrise.predict._stages import FLAT

_SEED_SIZE = 1e-4
_ROUGH = 0.1
"""The path needs no more accuracy than it takes to stay in its basin."""
_ALMOST_STILL = 0.1
_ENDLESS = 1e-12
_STILL = 1e-7
_VANISHING = 1e-4
_CLOSE = 0.3
_MOST_STEPS = 400
_MOST_NEWTON_STEPS = 20


class DiagonalPlateau:
    """A stationary point `point` (p,) with its loss `value`, and the exponents `b` (p,) of Eq. 8.

    `alpha^b` is the size of u + v. A coordinate starts at b = 1, and is active at 0 (positive) or 2
    (negative). The paper's line 1 says b = 0, a misprint.
    """

    mixing, clear = None, True

    def __init__(self, loss: Loss) -> None:
        self.loss, self.point = loss, loss.zero()
        value, self._gradient = loss.value_and_gradient(self.point)
        self.value, self._b = float(value), torch.ones_like(self.point)
        self._least = FLAT * float(self._gradient.abs().max())
        self.flat = not self._gradient.any()

    def waits(self) -> Tensor:
        """The rescaled time (p,) until each coordinate becomes active, if the gradient stays."""
        force = self._force()
        return torch.where(force == 0, math.inf, (self._b - 1 + force.sign()) / force)

    def product_of(self, winner: int) -> int:
        """The coordinate that an entry of `waits` belongs to."""
        return winner

    def wait(self, time: float) -> None:
        """Let a rescaled time pass."""
        self._b = torch.where(self.point == 0, self._b - self._force() * time, self._b)

    def move_on(self, winner: int) -> dict[str, Any] | None:
        """Let a coordinate become active and follow the flow to its rest: a `Stage`'s fields, or None if
        it has none.
        """
        sign = int(self._force()[winner].sign())
        self._b[winner] = 1 - sign
        start = self.point.clone()
        start[winner] = sign * _SEED_SIZE
        limit = land(self.loss, start)
        if limit is None:
            return None
        before, self.point = self.point, limit
        value, self._gradient = self.loss.value_and_gradient(self.point)
        self.value = float(value)
        left = ((before != 0) & (self.point == 0)).nonzero()[:, 0]
        return {"sign": sign, "rank": 1, "left": tuple(left.tolist())}

    def _force(self) -> Tensor:
        moves = (self.point == 0) & (self._gradient.abs() > self._least)
        return torch.where(moves, -self._gradient, 0.0)


def land(loss: Loss, start: Tensor) -> Tensor | None:
    """The limit (p,) of the flow of `a' = 2|a| g(a)` from `start` (p,), or None if it finds none.

    This is gradient flow on u and v with `|u| = |v|`, as on every stationary point of a vanishing
    initialisation. A coordinate that decays to nothing is exactly zero in the result.

    >>> from rankrise.predict._loss import checked_loss
    >>> target = torch.tensor([1.0, -2.0, 3.0], dtype=torch.float64)
    >>> loss = checked_loss(lambda a: ((a - target) ** 2).sum(), 3)
    >>> land(loss, torch.tensor([1e-6, 0.5, 0.0], dtype=torch.float64))
    tensor([1., 0., 0.], dtype=torch.float64)
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
    """The stationary point next to `point` with the same support, if the flow from `point` ends there.

    It does if the Hessian on the support is positive definite, and the point is close.
    """
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
