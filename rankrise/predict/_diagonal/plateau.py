"""A plateau of a diagonal network, and the transition to the next: stages A and B of Algorithm 1."""

import math

import torch
from torch import Tensor

from rankrise.predict._diagonal.landing import land
from rankrise.predict._loss import Loss
from rankrise.predict._transition import FLAT, Transition

_SEED_SIZE = 1e-4


class DiagonalPlateau:
    """A stationary point `point` (p,) with its loss `value`, and the exponents `b` (p,) of Eq. 8.

    `alpha^b` is the size of u + v. A coordinate starts at b = 1, and is active at 0 (positive) or 2
    (negative). The paper's line 1 says b = 0, a misprint.
    """

    def __init__(self, loss: Loss) -> None:
        self.loss, self.point = loss, loss.zero()
        value, self._gradient = loss.value_and_gradient(self.point)
        self.value, self._b = float(value), torch.ones_like(self.point)
        self._least = FLAT * float(self._gradient.abs().max())
        self.flat = not self._gradient.any()
        self.mixing = None

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

    def move_on(self, winner: int) -> Transition | None:
        """Let a coordinate become active and follow the flow to its point of rest; None if it has none."""
        sign = int(self._force()[winner].sign())
        self._b[winner] = 1 - sign
        start = self.point.clone()
        start[winner] = sign * _SEED_SIZE
        support = start.nonzero()[:, 0]
        limit = land(self.loss.restricted(support), start[support])
        if limit is None:
            return None
        before, self.point = self.point, torch.zeros_like(start).index_put((support,), limit)
        value, self._gradient = self.loss.value_and_gradient(self.point)
        self.value = float(value)
        left = ((before != 0) & (self.point == 0)).nonzero()[:, 0]
        return Transition(sign=sign, rank=1, left=tuple(left.tolist()))

    def _force(self) -> Tensor:
        moves = (self.point == 0) & (self._gradient.abs() > self._least)
        return torch.where(moves, -self._gradient, 0.0)
