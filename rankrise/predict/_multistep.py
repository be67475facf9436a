"""Backward differentiation formulas on unequal steps, from the points themselves.

The formula of order k takes the polynomial through the new point and the k points before it, and asks that
its derivative at the new time be the rate there (Hairer & Wanner, *Solving Ordinary Differential Equations
II*, section III.5). Everything needed is a linear combination of past points, so a step costs one small
matrix product.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

MAX_ORDER = 5


@dataclass(frozen=True)
class Formula:
    """The formula for one step: `z = sum(past * points) + reach * rate(z)`, and how to guess `z` and its
    error.

    `past` (k) and `guess` (k + 1) weigh the points before, newest first; the local error is `error * (z -
    guessed z)`.
    """

    past: list[float]
    reach: float
    guess: list[float]
    error: float


def formula(times: Sequence[float], new: float, order: int) -> Formula:
    """The formula of `order` for a step to time `new`, from at least `order + 1` past `times`, newest first.

    >>> formula([1.0, 0.0], 2.0, order=1)    # backward Euler, guessed by a straight line
    Formula(past=[1.0], reach=1.0, guess=[2.0, -1.0], error=0.5)
    """
    nodes = times[:order]
    reach = 1 / sum(1 / (new - node) for node in nodes)
    past = [reach * value / (new - node) for node, value in zip(nodes, lagrange(nodes, new), strict=True)]
    return Formula(past, reach, lagrange(times[: order + 1], new), reach / (new - times[order]))


def error_weights(times: Sequence[float], order: int) -> list[float]:
    """Weights (order + 2) of the newest points, the last accepted one first, whose sum is the local error of
    that last step.

    The error of the formula is the divided difference of order k + 1 times `reach` and the product of the k
    newest gaps.
    """
    nodes = times[: order + 2]
    gaps = [nodes[0] - node for node in nodes[1 : order + 1]]
    scale = prod(gaps) / sum(1 / gap for gap in gaps)
    return [scale / prod(node - other for other in nodes if other != node) for node in nodes]


def lagrange(nodes: Sequence[float], at: float) -> list[float]:
    """The values at `at` of the polynomials that are 1 at one node and 0 at the others.

    >>> lagrange([0.0, 1.0], 3.0)
    [-2.0, 3.0]
    """
    return [prod((at - other) / (node - other) for other in nodes if other != node) for node in nodes]
