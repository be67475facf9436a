"""What the greedy algorithm learns from a transition, whether of a diagonal network or of matrices."""

import math
from dataclasses import dataclass

from torch import Tensor

FLAT = 1e-9
"""A rate below this fraction of the largest at zero is nothing."""


@dataclass(frozen=True)
class Transition:
    """One product gained a direction and has `rank` now; those in `left` lost one.

    `clear` says whether the theory covers what happened. `rates`, `exponents` and `mixing` are a `Stage`'s.
    """

    sign: int
    rank: int
    left: tuple[int, ...]
    clear: bool = True
    rates: tuple[Tensor, ...] = ()
    exponents: tuple[Tensor, ...] = ()
    mixing: float = math.inf
