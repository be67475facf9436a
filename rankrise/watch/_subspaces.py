"""Leading singular vectors from factors, and how far the space they span has turned between two moments."""

from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._batches import batched
from rankrise.watch._factors import checked, refuse_non_finite
from rankrise.watch._gram import widened


class SingularVectors(NamedTuple):
    """`left_vectors * values @ right_vectors^T` is the best approximation of its rank: [..., m, k], [..., k],
    [..., n, k]."""

    left_vectors: Tensor
    values: Tensor
    right_vectors: Tensor


def leading_vectors(left: Tensor, right: Tensor, count: int, *, name: str = "") -> SingularVectors:
    """The `count` largest singular values of `left @ right^T` with their vectors, float64.

    The factors are reduced to triangles first, so that only an r x r matrix is decomposed.

    >>> left, right = torch.eye(6)[:, :2] * torch.tensor([3.0, 2.0]), torch.eye(6)[:, :2]
    >>> vectors = leading_vectors(left, right, count=1)
    >>> vectors.values.round(decimals=9), vectors.left_vectors.shape
    (tensor([3.], dtype=torch.float64), torch.Size([6, 1]))
    """
    left, right = checked(left, right, name)
    most = min(left.shape[-2], right.shape[-2], left.shape[-1])
    if not 1 <= count <= most:
        raise RankriseError(
            f"{count} leading vectors were asked of a product of rank at most {most}: ask for 1 to {most}."
        )
    # A head's vectors and values travel through the chunks as one matrix: m + n + 1 rows, `count` columns.
    joined = batched(lambda first, second: _decomposed(first, second, count), left, right)
    vectors, values, others = joined.split([left.shape[-2], 1, right.shape[-2]], dim=-2)
    refuse_non_finite(values.isnan().any(-1)[..., 0], name)
    return SingularVectors(vectors, values[..., 0, :], others)


def principal_angles(first: Tensor, second: Tensor) -> Tensor:
    """Angles in radians between two spaces, smallest first [..., k], from orthonormal bases [..., d, k].

    They are exact for small angles too, where cosines alone lose half the digits (Björck and Golub 1973).

    >>> plane = torch.eye(3, dtype=torch.float64)
    >>> principal_angles(plane[:, [0, 1]], plane[:, [0, 2]])
    tensor([0.0000, 1.5708], dtype=torch.float64)
    """
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
