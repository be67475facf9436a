"""All singular values of `left @ right^T` from the two factors, right to 1e-5 of the largest, in float64
throughout.

With the Gram matrices `A = left^T left` and `B = right^T right = C C^T` (Cholesky), the squared singular
values are the eigenvalues of `C^T A C`, which is only r x r. Squaring costs half the digits, and float64 has
them to spare for float32 weights, unless the two factors nearly cancel in the product. That is measured, and
such heads are done again from triangular factors (QR), which square nothing.
"""

import math

import torch
from torch import Tensor

from rankrise.watch._batches import batched, in_parallel, without_autocast
from rankrise.watch._change import Change, change_factors, refuse_beside_a_change
from rankrise.watch._factors import Blocks, Matrix, checked, refuse_non_finite
from rankrise.watch._gram import (
    CANCELLATION_LIMIT,
    EPSILON,
    Grams,
    balanced,
    divided,
    grams,
    plain_grams,
    widened,
)

# float64 rows of a plain matrix that are held at a time.
STREAM_BYTES = 2**27


def singular_values(left: Matrix | Change, right: Matrix | None = None, *, name: str = "") -> Tensor:
    """Singular values of `left @ right^T`, largest first, float64 [..., min(m, n, r)]; of `left` itself
    without `right`; of a `change`.

    `left` is [..., m, r] and `right` [..., n, r], of any floating type and scale; every error is below 1e-5
    of the largest value, whatever TF32, autocast or default type is set. A change [..., m, n] of products is
    [..., 2 r] values; one of whole matrices is never held whole, so that a large embedding fits. `name` (the
    layer) is for error messages.

    >>> left, right = torch.eye(6)[:, :2] * torch.tensor([3.0, 2.0]), torch.eye(6)[:, :2]
    >>> singular_values(left, right).round(decimals=9)
    tensor([3., 2.], dtype=torch.float64)
    >>> from rankrise import watch
    >>> singular_values(watch.change((left, right), (left + 2, right))).round(decimals=4)
    tensor([6.9282, 0.0000, 0.0000, 0.0000], dtype=torch.float64)
    """
    if isinstance(left, Change):
        refuse_beside_a_change(right)
        values = _difference_values(*left.weights) if left.is_whole else batched(change_values, *left.weights)
    elif right is None:
        matrix, _ = checked(left, left, name)
        values = batched(matrix_values, matrix)
    else:
        values = batched(factor_values, *checked(left, right, name))
    refuse_non_finite(values.isnan().any(-1), name)
    return values


def _difference_values(before: Tensor, after: Tensor) -> Tensor:
    """Singular values [..., min(m, n)] of `after - before`, one matrix after the other."""
    flat = (weight.reshape(-1, *weight.shape[-2:]) for weight in (before, after))
    values = torch.stack([difference_values(old, new) for old, new in zip(*flat, strict=True)])
    return values.reshape(*before.shape[:-2], -1)


def difference_values(before: Tensor, after: Tensor) -> Tensor:
    """Singular values [min(m, n)] of `after - before`, which is taken in float64 and never held whole; a
    matrix with nan or inf in it comes out as nan."""
    if before.shape[0] < before.shape[1]:
        before, after = before.mT, after.mT
    parts = row_parts(before, after)
    with torch.no_grad(), without_autocast(before.device.type):
        scale = torch.stack([(new.double() - old.double()).abs().amax() for old, new in parts]).amax()
        gram = before.new_zeros((1, before.shape[1], before.shape[1]), dtype=torch.float64)
        for old, new in parts:
            difference = divided(new.double() - old.double(), scale)
            gram[0].addmm_(difference.mT, difference)
        return _roots(gram, scale.isfinite().reshape(1))[0] * scale


def row_parts(before: Tensor, after: Tensor) -> list[tuple[Tensor, Tensor]]:
    """A few rows of both at a time, so that their difference is never held whole in float64."""
    rows = max(1, STREAM_BYTES // (8 * before.shape[1]))
    return list(zip(before.split(rows), after.split(rows), strict=True))


def factor_values(left: Tensor, right: Tensor) -> Tensor:
    """Singular values [heads, min(m, n, r)] of a chunk; a head with nan or inf in it comes out as nan."""
    left, right, scale = widened(left, right)
    return _gram_values((left,), (right,)) * scale.unsqueeze(-1)


def matrix_values(matrix: Tensor) -> Tensor:
    """Singular values [heads, min(m, n)] of the matrices themselves."""
    matrix = matrix.double()
    scale = matrix.abs().amax((-2, -1), keepdim=True)
    matrix = divided(matrix, scale)
    gram = matrix @ matrix.mT if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT @ matrix
    return _roots(gram, scale.isfinite().flatten()) * scale.flatten(1)


def change_values(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """Singular values [heads, r] of the change of a chunk, as `factor_values` gives them."""
    return change_values_and_grams(k0, q0, kt, qt)[0]


def change_values_and_grams(
    k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor
) -> tuple[Tensor, tuple[Tensor, ...] | None]:
    """The same, and the Gram matrices of k0, q0, kt and qt, which come with it; None where they do not."""
    if any(weight.dtype == torch.float64 for weight in (k0, q0, kt, qt)):
        return factor_values(*change_factors(k0, q0, kt, qt)), None
    k0, q0, kt, qt = (_double_columns(weight) for weight in (k0, q0, kt, qt))
    # `change_blocks`, in the place of the copies that are not needed any more: fresh memory costs time.
    left, right = (kt, torch.sub(kt, k0, out=k0)), (torch.sub(qt, q0, out=qt), q0)
    if _product_is_smaller(left, right):
        return _gram_values(left, right), None
    both = plain_grams(left, right)
    (now, cross, _, off), (step, mixed, _, before) = (_quarters(gram) for gram in both)
    found = (now - cross - cross.mT + off, before.clone(), now.clone(), step + mixed + mixed.mT + before)
    return _balanced_values(left, right, balanced(both)), found


def _double_columns(weight: Tensor) -> Tensor:
    """A factor [heads, d, r] in float64, each column in one piece, which makes Gram matrices fastest."""
    heads, rows, columns = weight.shape
    return weight.new_empty((heads, columns, rows), dtype=torch.float64).copy_(weight.mT).mT


def _quarters(gram: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    half = gram.shape[-1] // 2
    return gram[:, :half, :half], gram[:, :half, half:], gram[:, half:, :half], gram[:, half:, half:]


def _product_is_smaller(left: Blocks, right: Blocks) -> bool:
    return min(left[0].shape[-2], right[0].shape[-2]) < len(left) * left[0].shape[-1]


def _gram_values(left: Blocks, right: Blocks) -> Tensor:
    """Singular values from float64 factors whose squares are in range."""
    if _product_is_smaller(left, right):
        return matrix_values(torch.cat(left, -1) @ torch.cat(right, -1).mT)
    return _balanced_values(left, right, grams(left, right))


def _balanced_values(left: Blocks, right: Blocks, gram: Grams) -> Tensor:
    size = torch.linalg.matrix_norm(gram.left) * torch.linalg.matrix_norm(gram.right)
    root, failed = _cholesky(gram.right)
    values = _roots(_congruent(gram.left, root), size.isfinite() & ~failed)
    again = size.isfinite() & (failed | (size > CANCELLATION_LIMIT * values[:, 0].square()))
    values *= gram.scale.unsqueeze(-1)
    if again.any():
        values[again] = _triangular_values(torch.cat(left, -1)[again], torch.cat(right, -1)[again])
    return values


def _triangular_values(left: Tensor, right: Tensor) -> Tensor:
    """The same values without squaring: slower, and right even where the factors cancel to 1e-10 of their
    size.

    What is below float64's resolution of the terms that were added is zero.
    """
    terms = (torch.linalg.vector_norm(left, dim=-2) * torch.linalg.vector_norm(right, dim=-2)).sum(
        -1, keepdim=True
    )
    product = torch.linalg.qr(left, mode="r").R @ torch.linalg.qr(right, mode="r").R.mT
    values = torch.linalg.svdvals(product)
    return torch.where(values > 8 * EPSILON * terms, values, 0.0)


def _cholesky(gram: Tensor) -> tuple[Tensor, Tensor]:
    """A root of `gram`, and where it failed. The shift is of the size of the rounding errors in `gram`."""
    diagonal = gram.diagonal(dim1=-2, dim2=-1)
    largest = diagonal.amax(-1, keepdim=True)
    diagonal.add_(torch.where(largest > 0, 32 * EPSILON * largest, 1.0))
    root, info = torch.linalg.cholesky_ex(gram)
    return root, info != 0


def _congruent(gram: Tensor, root: Tensor) -> Tensor:
    """The upper half of `root^T gram root` for a lower triangular root: in blocks, without its zeros. What is
    below is not set."""
    half = gram.shape[-1] // 2
    if half < 32:
        return root.mT @ (gram @ root)
    top, side, bottom = root[:, :half, :half], root[:, half:, :half], root[:, half:, half:]
    first = torch.bmm(gram[:, :half, :half], top).baddbmm_(gram[:, :half, half:], side)
    second = torch.bmm(gram[:, half:, :half], top).baddbmm_(gram[:, half:, half:], side)
    product = torch.empty_like(gram)
    torch.bmm(top.mT, first, out=product[:, :half, :half]).baddbmm_(side.mT, second)
    torch.bmm(second.mT, bottom, out=product[:, :half, half:])
    torch.bmm(bottom.mT, gram[:, half:, half:] @ bottom, out=product[:, half:, half:])
    return product


def _roots(squared: Tensor, finite: Tensor) -> Tensor:
    """Roots of the eigenvalues [heads, r], largest first, of symmetric matrices given by their upper halves.

    They are nan where the matrices are not `finite`. From an accelerator the r x r matrices go to the host:
    its solvers take one matrix after another, in milliseconds each, and the host's cores take them side by
    side.
    """
    if not finite.all():
        squared = torch.where(finite[:, None, None], squared, 0.0)
    if squared.device.type == "cpu":
        values = _eigenvalues(squared)
    else:
        parts = squared.cpu().split(math.ceil(len(squared) / (4 * torch.get_num_threads())))
        values = torch.cat(in_parallel(_eigenvalues, parts)).to(squared.device)
    return torch.where(finite[:, None], values.clamp_min(0).sqrt().flip(-1), torch.nan)


def _eigenvalues(squared: Tensor) -> Tensor:
    return torch.linalg.eigvalsh(squared, UPLO="U")  # a fifth faster than "L" with MKL
