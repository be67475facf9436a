"""Columns under a known gradient: `W' = M(t) W`, `M = [[0, -G], [-G^T, 0]]`, which is linear."""

import math

import torch
from torch import Tensor

# The two Gauss points of a step, and the weights of a commutator-free method of order four (Blanes & Moan,
# Appl. Numer. Math. 56, 2006): two exponentials, each of a combination of M at both points.
GAUSS = (0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6)
_HEAVY, _LIGHT = 0.25 + math.sqrt(3) / 6, 0.25 - math.sqrt(3) / 6


def advance(columns: Tensor, rows: int, early: Tensor, late: Tensor, time: float) -> Tensor:
    """Columns (d1 + d2, c) after `time`, the gradient (d1, d2) being `early` and `late` at Gauss' points."""
    columns = exponential(columns, rows, time * (_HEAVY * early + _LIGHT * late))
    return exponential(columns, rows, time * (_LIGHT * early + _HEAVY * late))


def exponential(columns: Tensor, rows: int, gradient: Tensor) -> Tensor:
    """`exp([[0, -G], [-G^T, 0]])` times columns, from the singular vectors of the gradient (d1, d2).

    >>> columns = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    >>> exponential(columns, 1, torch.tensor([[-1.0]], dtype=torch.float64)).T   # cosh 1 and sinh 1
    tensor([[1.5431, 1.1752]], dtype=torch.float64)
    """
    left, values, right = torch.linalg.svd(-gradient, full_matrices=False)
    up, down = columns[:rows], columns[rows:]
    along, across = left.T @ up, right @ down
    growing = (along + across) / 2 * values.exp()[:, None]
    shrinking = (along - across) / 2 * (-values).exp()[:, None]
    return torch.cat(
        [
            up - left @ along + left @ (growing + shrinking),
            down - right.T @ across + right.T @ (growing - shrinking),
        ]
    )
