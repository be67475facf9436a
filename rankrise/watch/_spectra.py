"""Singular values and vectors of `left @ right^T` from its two factors, in float64, right to 1e-5 of the
largest value. No d x d product is formed.

With the Gram matrices `A = left^T left` and `B = right^T right = C C^T` (Cholesky), the squared singular
values are the eigenvalues of `C^T A C`, which is only r x r. Squaring costs half the digits, which float64
has to spare unless the two factors nearly cancel in the product: such heads are computed again by QR.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.foundations.device import in_parallel
from rankrise.foundations.errors import RankriseError
from rankrise.watch._change import Change, Factors, Matrix, as_change, divided, refuse_non_finite

Blocks = tuple[Tensor, ...]
"""Column blocks of one factor [heads, d, r]: one, or two of equal size."""

# |A| |B| over the largest squared singular value. Rounding errors are about 2e-16 |A| |B|; taking the root,
# values are then wrong by up to sqrt(2e3 * 2e-16) = 6e-7 of the largest.
CANCELLATION_LIMIT = 2e3
EPSILON = torch.finfo(torch.float64).eps
SPARE, BLOCKS = 4, 16  # columns beside those asked for; blocks of columns before all values are computed
TOLERANCE = 1e-5  # estimated relative error of a squared value at which it is good
NOISE = 1e-13  # squared values below this share of the largest are lost in rounding and never converge
STREAM_BYTES = 2**27  # of float64 rows of a whole matrix, held at a time


def singular_values(
    left: Matrix | Factors | Change, right: Matrix | None = None, *, name: str = ""
) -> Tensor:
    """Singular values of a change, of `left @ right^T`, or of `left` alone: float64 [..., k], largest first.

    `left` is [..., m, r] and `right` [..., n, r], of any floating dtype; there are min(m, n, r) values, and
    min(m, n, 2 r) for a change of products. `name` (the layer) is for error messages.

    >>> left, right = torch.eye(6)[:, :2] * torch.tensor([3.0, 2.0]), torch.eye(6)[:, :2]
    >>> singular_values(left, right).round(decimals=9)
    tensor([3., 2.], dtype=torch.float64)
    """
    learned = as_change(left, right, name=name)
    if learned.is_whole:
        old, new = (weight.reshape(-1, *weight.shape[-2:]) for weight in learned.weights)
        values = torch.stack([difference_values(*pair) for pair in zip(old, new, strict=True)])
        values = values.reshape(*learned.after[0].shape[:-2], -1)
    elif learned.before:
        values = learned.in_chunks(lambda part: change_values_and_grams(*part.weights)[0])
    else:
        values = learned.in_chunks(lambda part: factor_values(*part.after))
    refuse_non_finite(values.isnan().any(-1), name)
    return values


class SingularVectors(NamedTuple):
    """`left_vectors * values @ right_vectors^T`, from [..., m, k], [..., k] and [..., n, k]."""

    left_vectors: Tensor
    values: Tensor
    right_vectors: Tensor


def leading_vectors(
    left: Matrix | Factors | Change, right: Matrix | None = None, count: int = 1, *, name: str = ""
) -> SingularVectors:
    """The `count` largest singular values with their vectors, float64; takes what `singular_values` takes.

    >>> left, right = torch.eye(6)[:, :2] * torch.tensor([3.0, 2.0]), torch.eye(6)[:, :2]
    >>> vectors = leading_vectors(left, right, count=1)
    >>> vectors.values.round(decimals=9), vectors.left_vectors.shape
    (tensor([3.], dtype=torch.float64), torch.Size([6, 1]))
    """
    learned = as_change(left, right, name=name)
    if not 1 <= count <= learned.highest_rank:
        raise RankriseError(f"count is {count}: pass 1 to {learned.highest_rank}, the highest possible rank.")
    bad = [~weight.isfinite().all(-1).all(-1) for weight in learned.weights]
    refuse_non_finite(torch.stack(bad).any(0), name)

    def decomposed(part: Change) -> Tensor:
        """Left vectors, values and right vectors, stacked in one matrix per head."""
        (left_base, left_triangle), (right_base, right_triangle) = map(torch.linalg.qr, part.factors())
        vectors, values, others = torch.linalg.svd(left_triangle @ right_triangle.mT)
        rows = left_base @ vectors, values[:, None], right_base @ others.mT
        return torch.cat([one[..., :count] for one in rows], dim=-2)

    rows, columns = learned.shape
    vectors, values, others = learned.in_chunks(decomposed).split([rows, 1, columns], dim=-2)
    return SingularVectors(vectors, values[..., 0, :], others)


def factor_values(left: Tensor, right: Tensor) -> Tensor:
    """Singular values [heads, min(m, n, r)] of `left @ right^T`; nan for a head that holds nan or inf."""
    return _values((left.double(),), (right.double(),))


def change_values_and_grams(
    k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """Singular values [heads, r] of a change, and the Gram matrices of all four if they were computed."""
    # Contiguous columns make Gram matrices fastest.
    k0, q0, kt, qt = (
        weight.mT.to(torch.float64, memory_format=torch.contiguous_format, copy=True).mT
        for weight in (k0, q0, kt, qt)
    )
    # As `Change.blocks`, in place of copies that are no longer needed: fresh memory costs time.
    left, right = (kt, torch.sub(kt, k0, out=k0)), (torch.sub(qt, q0, out=qt), q0)
    if _product_is_smaller(left, right):
        return _values(left, right), None
    both, half = plain_grams(left, right), kt.shape[-1]
    (now, cross, off), (step, mixed, before) = (
        (gram[:, :half, :half], gram[:, :half, half:], gram[:, half:, half:]) for gram in both
    )
    found = (now - cross - cross.mT + off, before.clone(), now.clone(), step + mixed + mixed.mT + before)
    return _values(left, right, both), found


def difference_values(before: Tensor, after: Tensor) -> Tensor:
    """Singular values [min(m, n)] of `after - before` [m, n], a few rows at a time."""
    if before.shape[0] < before.shape[1]:
        before, after = before.mT, after.mT
    with torch.no_grad():  # autocast leaves float64 alone
        gram = before.new_zeros((1, before.shape[1], before.shape[1]), dtype=torch.float64)
        for old, new in _row_parts(before, after):
            difference = new.double() - old.double()
            gram[0].addmm_(difference.mT, difference)
        return _roots(gram)[0]


def _row_parts(before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Both in parts of a few rows: the difference of large embeddings is never held whole in float64."""
    rows = max(1, STREAM_BYTES // (8 * before.shape[1]))
    return list(zip(before.split(rows), after.split(rows), strict=True))


class Grams(NamedTuple):
    """Gram matrices [heads, r, r] of factors whose columns have equal norms on both sides, at most 1.

    Before, the product was `scale` [heads] times larger, and columns had `norms` [2, heads, r].
    """

    left: Tensor
    right: Tensor
    scale: Tensor
    norms: Tensor


def plain_grams(left: Blocks, right: Blocks) -> Tensor:
    """`left^T left` and `right^T right` [2, heads, r, r]; equal off-diagonal blocks are computed once."""
    heads, size, inner = left[0].shape[0], left[0].shape[-1], len(left) * left[0].shape[-1]
    both = left[0].new_empty((2, heads, inner, inner))
    for factor, gram in zip((left, right), both, strict=True):
        for row in range(len(factor)):
            for column in range(row, len(factor)):
                here = gram[:, row * size : (row + 1) * size, column * size : (column + 1) * size]
                torch.bmm(factor[row].mT, factor[column], out=here)
        if len(factor) == 2:
            gram[:, size:, :size] = gram[:, :size, size:].mT
    return both


def balanced(both: Tensor) -> Grams:
    """Scale plain Gram matrices in place. A column that is zero on one side is dropped on the other."""
    norms = both.diagonal(dim1=-2, dim2=-1).sqrt()
    target = norms.sqrt().prod(0)
    largest = target.amax(-1, keepdim=True)
    scale = divided(divided(target, largest), norms)
    both.mul_(scale.unsqueeze(-1)).mul_(scale.unsqueeze(-2))
    return Grams(both[0], both[1], largest[..., 0].square(), norms)


def _product_is_smaller(left: Blocks, right: Blocks) -> bool:
    return min(left[0].shape[-2], right[0].shape[-2]) < len(left) * left[0].shape[-1]


def _values(left: Blocks, right: Blocks, both: Tensor | None = None) -> Tensor:
    """Singular values from float64 factors, and from their plain Gram matrices, which are overwritten."""
    if _product_is_smaller(left, right):
        product = torch.cat(left, -1) @ torch.cat(right, -1).mT
        wide = product.shape[-2] <= product.shape[-1]
        return _roots(product @ product.mT if wide else product.mT @ product)
    gram = balanced(plain_grams(left, right) if both is None else both)
    size = torch.linalg.matrix_norm(gram.left) * torch.linalg.matrix_norm(gram.right)
    # Cholesky of the right one, shifted by the size of its rounding errors
    diagonal = gram.right.diagonal(dim1=-2, dim2=-1)
    most = diagonal.amax(-1, keepdim=True)
    diagonal.add_(torch.where(most > 0, 32 * EPSILON * most, 1.0))
    root, info = torch.linalg.cholesky_ex(gram.right)
    failed, finite = info != 0, size.isfinite()
    values = _roots(root.mT @ (gram.left @ root), finite & ~failed)
    again = finite & (failed | (size > CANCELLATION_LIMIT * values[:, 0].square()))
    values *= gram.scale.unsqueeze(-1)
    if again.any():  # without squaring: slower, and right even where factors cancel to 1e-10 of their size
        whole = [torch.cat(blocks, -1)[again] for blocks in (left, right)]
        terms = torch.linalg.vector_norm(whole[0], dim=-2) * torch.linalg.vector_norm(whole[1], dim=-2)
        product = torch.linalg.qr(whole[0], mode="r").R @ torch.linalg.qr(whole[1], mode="r").R.mT
        exact = torch.linalg.svdvals(product)
        values[again] = torch.where(exact > 8 * EPSILON * terms.sum(-1, keepdim=True), exact, 0.0)
    return values


def _roots(squared: Tensor, finite: Tensor | None = None) -> Tensor:
    """Roots of the eigenvalues [heads, r], largest first, of symmetric matrices given by their upper halves;
    nan where they are not `finite`. On the host: accelerators solve one small matrix after another.
    """
    finite = squared.diagonal(dim1=-2, dim2=-1).isfinite().all(-1) if finite is None else finite
    if not finite.all():
        squared = torch.where(finite[:, None, None], squared, 0.0)
    solve = partial(torch.linalg.eigvalsh, UPLO="U")  # a fifth faster than "L" with MKL
    if squared.device.type == "cpu":
        values = solve(squared)
    else:
        parts = squared.cpu().split(math.ceil(len(squared) / (4 * torch.get_num_threads())))
        values = torch.cat(in_parallel(solve, parts)).to(squared.device)
    return torch.where(finite[:, None], values.clamp_min(0).sqrt().flip(-1), torch.nan)


def leading_values(before: Tensor, after: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest singular values of `after - before` [m, n] and its Frobenius norm, in float64.

    Block Krylov iteration (Musco and Musco, 2015) with full reorthogonalisation: for the difference D and a
    few random columns X, the span of X, (D^T D) X, (D^T D)^2 X, ... soon contains the leading vectors. A Ritz
    value of D^T D in it is too small by at most residual^2 / gap; if that stays large, all are computed.
    """
    if before.shape[0] < before.shape[1]:
        before, after = before.mT, after.mT
    count = min(count, before.shape[1])
    parts = _row_parts(before, after)
    norm = torch.stack([torch.linalg.vector_norm(new.double() - old.double()) for old, new in parts]).norm()
    if not norm.isfinite() or norm == 0:
        return (norm * 0).expand(count), norm

    generator = torch.Generator().manual_seed(0)
    start = torch.randn(before.shape[1], count + SPARE, generator=generator, dtype=torch.float64)
    block = torch.linalg.qr(start.to(before.device)).Q
    basis = images = block[:, :0]
    while basis.shape[1] + block.shape[1] <= min(before.shape[1], BLOCKS * (count + SPARE)):
        image = torch.zeros_like(block)
        for old, new in parts:
            difference = new.double() - old.double()
            image.addmm_(difference.mT, difference @ block)
        basis, images = torch.cat((basis, block), 1), torch.cat((images, image), 1)
        squares, turn = torch.linalg.eigh(basis.mT @ images)
        squares, turn = squares.flip(0), turn.flip(1)
        for _ in range(2):  # the second time for what rounding left of the first
            image = image - basis @ (basis.mT @ image)
        block, rest = torch.linalg.qr(image)
        residuals = torch.linalg.vector_norm(rest @ turn[-block.shape[1] :], dim=0)[:count]
        if basis.shape[1] > block.shape[1]:
            gap = (squares[:count] - squares[count]).clamp_min(0) + residuals
            error = divided(residuals.square(), gap)
            if (error <= TOLERANCE * squares[:count] + NOISE * squares[0]).all():
                return squares[:count].clamp_min(0).sqrt(), norm
    return difference_values(before, after)[:count], norm
