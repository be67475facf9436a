"""Leading singular vectors from factors, and how far the space they span has turned between two moments."""

from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.watch._change import Change
from rankrise.watch._factors import Matrix, as_tensor, checked, refuse_non_finite
from rankrise.watch._gram import on_factors, widened


class SingularVectors(NamedTuple):
    """`left_vectors * values @ right_vectors^T` is the best approximation of its rank: [..., m, k], [..., k],
    [..., n, k]."""

    left_vectors: Tensor
    values: Tensor
    right_vectors: Tensor


@typed
def leading_vectors(
    left: Matrix | Change, right: Matrix | None = None, count: int = 1, *, name: str = ""
) -> SingularVectors:
    """The `count` largest singular values of `left @ right^T` with their vectors, float64; of `left` itself
    without `right`; of a `change`.

    The factors are reduced to triangles first, so that only an r x r matrix is decomposed.

    >>> left, right = torch.eye(6)[:, :2] * torch.tensor([3.0, 2.0]), torch.eye(6)[:, :2]
    >>> vectors = leading_vectors(left, right, count=1)
    >>> vectors.values.round(decimals=9), vectors.left_vectors.shape
    (tensor([3.], dtype=torch.float64), torch.Size([6, 1]))
    """
    rows, columns, most = _sizes(left, right, name)
    if not 1 <= count <= most:
        raise RankriseError(
            f"{count} leading vectors were asked of a product of rank at most {most}: ask for 1 to {most}."
        )
    # A head's vectors and values travel through the chunks as one matrix: m + n + 1 rows, `count` columns.
    joined = on_factors(lambda first, second: _decomposed(first, second, count), left, right, name)
    vectors, values, others = joined.split([rows, 1, columns], dim=-2)
    refuse_non_finite(values.isnan().any(-1)[..., 0], name)
    return SingularVectors(vectors, values[..., 0, :], others)


def _sizes(left: Matrix | Change, right: Matrix | None, name: str) -> tuple[int, int, int]:
    """Rows, columns and the largest possible rank."""
    weights: tuple[Tensor, ...]
    if isinstance(left, Change):
        weights = left.before
    elif right is None:
        weights = checked(left, left, name)[:1]
    else:
        weights = checked(left, right, name)
    if len(weights) == 1:
        rows, columns = weights[0].shape[-2:]
        return rows, columns, min(rows, columns)
    inner = weights[0].shape[-1] * (2 if isinstance(left, Change) else 1)
    rows, columns = (weight.shape[-2] for weight in weights)
    return rows, columns, min(rows, columns, inner)


def principal_angles(first: Matrix, second: Matrix) -> Tensor:
    """Angles in radians between two spaces, smallest first [..., k], from orthonormal bases [..., d, k].

    They are exact for small angles too, where cosines alone lose half the digits (Björck and Golub 1973).

    >>> plane = torch.eye(3, dtype=torch.float64)
    >>> principal_angles(plane[:, [0, 1]], plane[:, [0, 2]])
    tensor([0.0000, 1.5708], dtype=torch.float64)
    """
    first, second = as_tensor(first), as_tensor(second)
    if first.shape != second.shape:
        raise RankriseError(
            f"The bases are {list(first.shape)} and {list(second.shape)}: pass two of the same shape."
        )
    first, second = first.detach().double(), second.detach().double()
    overlap = first.mT @ second
    cosines = torch.linalg.svdvals(overlap)
    sines = torch.linalg.svdvals(second - first @ overlap).flip(-1)
    return torch.atan2(sines, cosines)


def _decomposed(left: Tensor, right: Tensor, count: int) -> Tensor:
    left, right, scale = widened(left, right)
    finite = left.isfinite().all(-1).all(-1) & right.isfinite().all(-1).all(-1)
    left, right = (torch.where(finite[:, None, None], factor, 0.0) for factor in (left, right))
    (left_base, left_triangle), (right_base, right_triangle) = torch.linalg.qr(left), torch.linalg.qr(right)
    vectors, values, others = torch.linalg.svd(left_triangle @ right_triangle.mT)
    values = torch.where(finite[:, None], values * scale[:, None], torch.nan)
    parts = [left_base @ vectors[..., :count], values[:, None, :count], right_base @ others.mT[..., :count]]
    return torch.cat(parts, dim=-2)
