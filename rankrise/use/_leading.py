"""The leading singular directions of one large matrix, many times faster than its whole SVD."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError

WHOLE_UP_TO = 384
"""Of a matrix whose smaller side is at most this long, a whole decomposition is quickest."""

_GROWTH = 1e5
"""By how much a polynomial may enlarge the first direction over the rest, which float32 still keeps."""

_DEGREES = 8
"""Of the polynomials in one pass, together: between passes stands the decomposition of a small matrix."""

_PASSES = 24


class Directions(NamedTuple):
    """`left @ right.mT` is the best approximation of its rank; the columns of `right` are orthonormal."""

    values: Tensor
    """Singular values, largest first. [k]"""
    left: Tensor
    """Left singular vectors times their values. [m, k]"""
    right: Tensor
    """Right singular vectors. [n, k]"""


def leading_directions(matrix: Tensor, count: int, tolerance: float = 3e-4) -> Directions:
    """The `count` leading singular directions of `matrix`; fewer if it has fewer.

    A block of directions is refined by `T(M^T M)`, T the Chebyshev polynomial that is small on what the block
    leaves out and grows fastest beyond it (Zhou and Saad 2007). It stops where a pass adds less than
    `tolerance` to the kept square; what is missing then is far less than that, since each pass divides it by
    a multiple of 10. Every step is a product of matrices, so that a GPU does it at full speed.

    >>> matrix = torch.diag(torch.arange(1.0, 6.0))
    >>> leading_directions(matrix, 2).values
    tensor([5., 4.])
    """
    if matrix.ndim != 2 or not matrix.is_floating_point():
        raise RankriseError(
            f"leading_directions was given a tensor of shape {list(matrix.shape)} and {matrix.dtype}: pass a "
            "matrix of floating-point numbers."
        )
    if matrix.shape[0] < matrix.shape[1]:
        values, left, right = leading_directions(matrix.mT, count, tolerance)
        lengths = torch.where(values > 0, values, 1)
        return Directions(values, right * values, left / lengths)
    count = min(count, matrix.shape[1])
    if count == 0:
        return Directions(
            matrix.new_zeros(0), matrix.new_zeros(len(matrix), 0), matrix.new_zeros(matrix.shape[1], 0)
        )
    size = matrix.abs().amax()
    if not torch.isfinite(size):
        raise RankriseError(
            "A change of weights holds infinite or undefined numbers: check both checkpoints."
        )
    if size == 0:
        return Directions(
            matrix.new_zeros(count),
            matrix.new_zeros(len(matrix), count),
            torch.eye(matrix.shape[1], count, dtype=matrix.dtype, device=matrix.device),
        )
    matrix = matrix / size
    width = count + max(16, count // 4)
    if matrix.shape[1] <= WHOLE_UP_TO or 2 * width >= matrix.shape[1]:
        right = _whole(matrix, count)
    else:
        right = _refined(matrix, count, width, tolerance)
    left = matrix @ right
    lengths = torch.linalg.vector_norm(left, dim=0)
    order = lengths.argsort(descending=True)
    return Directions(size * lengths[order], size * left[:, order], right[:, order])


def _whole(matrix: Tensor, count: int) -> Tensor:
    """By all eigenvectors of the smaller Gram matrix, in float64: its squares cost float32 nothing."""
    _, vectors = torch.linalg.eigh(_gram(matrix))
    return vectors.flip(1)[:, :count].to(matrix.dtype)


def _refined(matrix: Tensor, count: int, width: int, tolerance: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(matrix.shape[1], width, generator=generator).to(matrix)
    block = _orthonormal(matrix.mT @ (matrix @ _orthonormal(block)))
    kept = 0.0
    for _ in range(_PASSES):
        squares, turn = torch.linalg.eigh(_gram(matrix @ block).cpu())
        block = (block @ turn.flip(1).to(block)).contiguous()
        squares = squares.flip(0)
        before, kept = kept, float(squares[:count].sum())
        if kept - before <= tolerance * kept:
            break
        largest, edge = float(squares[0]), max(float(squares[-1]), 1e-7 * float(squares[0]))
        growth = math.acosh(max(2 * largest / edge - 1, 1 + 1e-6))
        degree = min(max(int(math.acosh(_GROWTH) / growth), 1), _DEGREES)
        for _ in range(_DEGREES // degree):
            block = _orthonormal(_filtered(matrix, block, edge, degree))
    return block[:, :count]


def _filtered(matrix: Tensor, block: Tensor, edge: float, degree: int) -> Tensor:
    """`T_d(2 M^T M / edge - 1) @ block` by the three-term recursion, each column then of length 1."""

    def shifted(columns: Tensor, factor: float) -> Tensor:
        return torch.add(matrix.mT @ (matrix @ columns).mul_(2 * factor / edge), columns, alpha=-factor)

    before, now = block, shifted(block, 1.0)
    for _ in range(degree - 1):
        before, now = now, shifted(now, 2.0).sub_(before)
    return now / torch.linalg.vector_norm(now, dim=0).clamp_min(torch.finfo(now.dtype).tiny)


def _orthonormal(block: Tensor) -> Tensor:
    """Columns made orthonormal by Cholesky twice, which is products of matrices; by Householder where columns
    depend on each other."""
    made = block
    for _ in range(2):
        root, failed = torch.linalg.cholesky_ex(_gram(made))
        if failed:
            return torch.linalg.qr(block).Q
        made = torch.linalg.solve_triangular(root.to(made.dtype), made.mT, upper=False).mT
    return made


def _gram(columns: Tensor) -> Tensor:
    double = columns.double()
    return double.mT @ double
