"""Gram matrices of two factors, scaled so that their squares neither overflow nor lose the small columns."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.watch._batches import batched
from rankrise.watch._change import Change, change_factors, identity, refuse_beside_a_change
from rankrise.watch._factors import Blocks, Matrix, checked

# |A| |B| over the largest squared singular value, for Gram matrices A and B in float64. Rounding errors are
# about 2e-16 |A| |B|; taking the root, values are then wrong by up to sqrt(2e3 * 2e-16) = 6e-7 of the
# largest.
CANCELLATION_LIMIT = 2e3
EPSILON = torch.finfo(torch.float64).eps


def widened(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The factors in float64, their squares in range, and the number [...] that was taken out of their
    product.

    Only float64 factors can leave float64's range. They are then scaled column by column: the product is a
    sum of `left_j right_j^T`, which stays the same when one takes what the other gives.
    """
    ones = left.new_ones(left.shape[:-2], dtype=torch.float64)
    if left.dtype != torch.float64 and right.dtype != torch.float64:
        return left.double(), right.double(), ones
    left, right = left.double(), right.double()
    left_size, right_size = (
        torch.maximum(x.amax(-2, keepdim=True), -x.amin(-2, keepdim=True)) for x in (left, right)
    )
    if all(((size == 0) | ((size > 1e-70) & (size < 1e70))).all() for size in (left_size, right_size)):
        return left, right, ones
    weight = left_size.sqrt() * right_size.sqrt()
    largest = weight.amax(-1, keepdim=True)
    share = divided(weight, largest)
    return divided(left, left_size) * share, divided(right, right_size) * share, largest[..., 0, 0].square()


class Grams(NamedTuple):
    """Gram matrices [..., r, r] of two factors whose columns have equal norms on both sides, at most 1.

    The factors' product was `scale` [...] times larger, and their columns had `norms` [..., r] left and
    right.
    """

    left: Tensor
    right: Tensor
    scale: Tensor
    norms: tuple[Tensor, Tensor]


def grams(left: Blocks, right: Blocks) -> Grams:
    """`left^T left` and `right^T right`, the columns scaled one against the other: the product stays.

    A column that is zero on one side is dropped on the other.
    """
    return balanced(plain_grams(left, right))


def plain_grams(left: Blocks, right: Blocks) -> Tensor:
    """`left^T left` and `right^T right` as they are, [2, heads, r, r]."""
    heads, inner = left[0].shape[0], len(left) * left[0].shape[-1]
    both = left[0].new_empty((2, heads, inner, inner))
    for blocks, gram in zip((left, right), both, strict=True):
        _fill_gram(blocks, gram)
    return both


def balanced(both: Tensor) -> Grams:
    """Plain Gram matrices, scaled in their place."""
    norms = both.diagonal(dim1=-2, dim2=-1).sqrt()
    target = norms.sqrt().prod(0)
    largest = target.amax(-1, keepdim=True)
    scale = divided(divided(target, largest), norms)
    both.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    return Grams(both[0], both[1], largest[..., 0].square(), (norms[0], norms[1]))


def _fill_gram(blocks: Blocks, gram: Tensor) -> None:
    """Write `x^T x` for x = [blocks]: of four blocks, the two off the diagonal are one product."""
    first, last = blocks[0], blocks[-1]
    if first is last:
        torch.bmm(first.mT, first, out=gram)
        return
    size = first.shape[-1]
    corner = gram[:, :size, size:]
    torch.bmm(first.mT, first, out=gram[:, :size, :size])
    torch.bmm(first.mT, last, out=corner)
    torch.bmm(last.mT, last, out=gram[:, size:, size:])
    gram[:, size:, :size] = corner.mT


def frobenius_norm(left: Matrix | Change, right: Matrix | None = None) -> Tensor:
    """`|left @ right^T|_F` [...] from the Gram matrices, float64; of `left` itself without `right`; of a
    `change`.

    >>> frobenius_norm(torch.ones(4, 1), torch.ones(9, 1)).round(decimals=9)
    tensor(6., dtype=torch.float64)
    """

    def norms(left: Tensor, right: Tensor) -> Tensor:
        left, right, scale = widened(left, right)
        gram = grams((left,), (right,))
        return (gram.left * gram.right).sum((-2, -1)).clamp_min(0).sqrt() * gram.scale * scale

    return on_factors(norms, left, right)


def on_factors(
    function: Callable[[Tensor, Tensor], Tensor],
    left: Matrix | Change,
    right: Matrix | None,
    name: str = "",
) -> Tensor:
    """`function` of the two factors of a product, a whole matrix or a change, chunk by chunk."""
    if isinstance(left, Change):
        refuse_beside_a_change(right)
        return batched(lambda *weights: function(*change_factors(*weights)), *left.weights)
    if right is None:
        matrix, _ = checked(left, left, name)
        return batched(lambda matrix: function(matrix, identity(matrix)), matrix)
    return batched(function, *checked(left, right, name))


def divided(numerator: Tensor, denominator: Tensor) -> Tensor:
    """`numerator / denominator`, and 0 where the denominator is 0."""
    return numerator / torch.where(denominator == 0, torch.inf, denominator)
