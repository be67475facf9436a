"""The largest singular values without a decomposition: of heads by their Gram matrices, of large matrices by
block Krylov iteration."""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.watch._change import divided
from rankrise.watch._spectra import difference_values, row_parts

# ----------------------------------------------------------------------------------------------------------
# Heads: the largest eigenvalue of `A B` for the Gram matrices A and B of a product's factors, which is its
# squared spectral norm. On the CPU, where reading the matrices takes the time, by subspace iteration; on an
# accelerator, where launching kernels does, by powers of whole matrices.

# Vectors iterated together: reading the matrices costs the same for a few, and a cluster of as many leading
# values does no harm.
BLOCK = 16
# Degrees of the Chebyshev filter in the first round and in later ones, and the most rounds.
DEGREE, LATER_DEGREE, ROUNDS = 8, 4, 12
# How much the first filter lifts the leading vector over those it damps. With more, the rows become parallel
# within float32's resolution. The filter damps what is below this share of the largest value, or more.
GROWTH = 100.0
LOWEST_CUT = 2 / (math.cosh(math.acosh(GROWTH) / DEGREE) + 1)
# A smallest Ritz value below this share of the largest: the vectors span the whole range.
NOTHING = 1e-6
# Powers are taken 64 at a time, which stays in float64's range; after s such rounds the largest eigenvalue of
# r x r matrices is known to log(r) / 64^s / 2: 1e-5 for r = 256.
POWER, POWER_ROUNDS = 64, 3


class Leading(NamedTuple):
    """Largest eigenvalues and estimates of their relative errors [heads, 1], right and left eigenvectors
    [heads, r]."""

    value: Tensor
    error: Tensor
    right: Tensor
    left: Tensor


def by_filter(first: Tensor, second: Tensor, tolerance: float) -> Leading:
    """Leading eigenvalue of `first @ second` [heads, r, r], by filtered subspace iteration (Zhou, Saad and
    others, 2006).

    A polynomial that stays small on [0, c] and grows beyond it is applied to a few vectors; c is their
    smallest Ritz value or a share of the largest. Then Rayleigh and Ritz, in the scalar product of `second`,
    in which the operator is symmetric. Each head keeps its best round.
    """
    heads, inner = first.shape[0], first.shape[-1]
    generator = torch.Generator(first.device).manual_seed(0)
    shape = 1, min(BLOCK, inner), inner
    start = torch.randn(shape, generator=generator, dtype=first.dtype, device=first.device)
    rows, best = start.expand(heads, -1, -1) @ first, None
    for done in range(ROUNDS):
        images = rows @ second
        applied = images @ first
        turn, values = _ritz(rows @ images.mT, applied @ images.mT)
        rows, applied = turn @ rows, turn @ applied
        if done or (values[:, 0] <= NOTHING * values[:, -1]).all():
            found = _assessed(first, second, rows[:, -1:], values[:, :1])
            if best is not None:
                better = found.error < best.error
                found = Leading(*(torch.where(better, *pair) for pair in zip(found, best, strict=True)))
            best = found
            if (best.error <= tolerance).all():
                break
        cut = torch.maximum(values[:, 0], LOWEST_CUT * values[:, -1])[:, None, None]
        factor = divided(torch.full_like(cut, 2.0), cut).to(rows.dtype)
        before, rows = rows, factor * applied - rows
        for _ in range((LATER_DEGREE if done else DEGREE) - 1):
            # T_k+1(x) = 2 x T_k(x) - T_k-1(x), with x = factor * first @ second - 1
            images = (rows @ second).mul_(2 * factor)
            before, rows = rows, torch.baddbmm(before, images, first, beta=-1).sub_(rows, alpha=2)
        rows = divided(rows, rows.abs().amax(-1, keepdim=True))
    assert best is not None
    return best


def _ritz(overlap: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """Rotation to Ritz vectors (rows) and their values, smallest first; 0 for directions lost in rounding."""
    cutoff = 10 * torch.finfo(overlap.dtype).eps
    finite = (overlap.isfinite() & energy.isfinite()).all(-1).all(-1)[:, None, None]
    wide, energy_wide = (torch.where(finite, matrix, 0.0).double() for matrix in (overlap, energy))
    scale = divided(torch.ones_like(wide[:, 0]), wide.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt())
    lengths, directions = torch.linalg.eigh(scale[:, :, None] * wide * scale[:, None, :])
    shrink = torch.where(lengths > cutoff * lengths[:, -1:], lengths.clamp_min(0).rsqrt(), 0.0)
    white = scale[:, :, None] * directions * shrink[:, None, :]
    values, vectors = torch.linalg.eigh(white.mT @ energy_wide @ white)
    turn = (white @ vectors).mT.to(overlap.dtype)
    return turn, torch.where(finite[:, 0], values.clamp_min(0), torch.nan)


def _assessed(first: Tensor, second: Tensor, right: Tensor, lowest: Tensor) -> Leading:
    """Value and error of a Ritz vector [heads, 1, r]; `lowest` [heads, 1] is the smallest Ritz value.

    A Ritz value is never above the largest eigenvalue. It is below by at most residual^2 / gap, and by a few
    residuals if the leading values are too close to see a gap. The operator is applied afresh, free of the
    rounding in the nearly parallel rows from which the vector was put together.
    """
    left = right @ second
    after = left @ first
    norm = (right * left).sum(-1, keepdim=True)
    value = divided((left * after).sum(-1, keepdim=True), norm)
    rest = after - value * right
    residual = divided(((rest @ second) * rest).sum(-1, keepdim=True), norm).clamp_min(0).double().sqrt()
    value, residual, length = value.double()[:, 0], residual[:, 0], norm[:, 0].sqrt()
    gap = (value - lowest).clamp_min(0)
    error = torch.where(gap > 10 * residual, divided(residual.square(), gap), 4 * residual)
    error = torch.where(value > 0, divided(error, value), residual)
    return Leading(value, error, divided(right[:, 0], length), divided(left[:, 0], length))


def by_squaring(matrix: Tensor) -> Tensor:
    """Largest eigenvalue [heads] of matrices [heads, r, r] with eigenvalues >= 0, from traces of powers.

    With q = 64^s, `tr M^2q / tr M^q` is at most the q-th power of the largest, and short of it by a factor of
    at most sqrt(r), for any start and any gap.
    """

    def trace(matrix: Tensor) -> Tensor:
        return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]

    scale = trace(matrix)
    power, logarithm = divided(matrix, scale), torch.zeros_like(scale)  # of tr M^q, M having trace 1
    for _ in range(POWER_ROUNDS):
        power = torch.linalg.matrix_power(power, POWER)
        size = trace(power)
        power, logarithm = divided(power, size), POWER * logarithm + size.log()
    logarithm = logarithm + (power * power.mT).sum((-2, -1), keepdim=True).log()
    largest = scale * (logarithm / POWER**POWER_ROUNDS).exp()
    return torch.where(scale > 0, largest, scale)[:, 0, 0]


# ----------------------------------------------------------------------------------------------------------
# Large matrices: block Krylov iteration (Musco and Musco, 2015) with full reorthogonalisation.

# Columns iterated beside those asked for; blocks of columns before the whole matrix is decomposed.
SPARE, BLOCKS = 4, 16
# Estimated relative error of a squared value at which it is good.
TOLERANCE = 1e-5
# Squared values below this fraction of the largest are lost in rounding and never converge.
NOISE = 1e-13


def leading_values(before: Tensor, after: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest singular values of `after - before` [m, n] and its Frobenius norm, in float64.

    With D the difference, the space spanned by X, (D^T D) X, (D^T D)^2 X, ... for a few random columns X soon
    contains the leading vectors. A Ritz value of D^T D in it is too small by at most residual^2 / gap; if
    that does not become small, all values are computed.
    """
    if before.shape[0] < before.shape[1]:
        before, after = before.mT, after.mT
    count = min(count, before.shape[1])
    parts = row_parts(before, after)
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
