"""The largest eigenvalue of `A B` for two symmetric positive semidefinite matrices a head, without a
decomposition.

For Gram matrices A and B of two factors it is the squared spectral norm of their product. Two ways: vectors
on the CPU, where reading the matrices is what costs, and whole powers on an accelerator, where launching a
kernel is.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.watch.gram import divided

# Vectors iterated together: a handful costs no more than one, and a cluster of as many leading values does
# no harm.
BLOCK = 8
# Degree of the Chebyshev filter, and how often it is applied before the iteration gives up.
DEGREE = 5
ROUNDS = 12
# Powers are taken 64 at a time, which stays in float64's range; after s such rounds the largest
# eigenvalue of r x r matrices is known to log(r) / 64^s / 2: 1e-5 for r = 256.
POWER = 64
POWER_ROUNDS = 3


@dataclass(frozen=True)
class Leading:
    """Largest eigenvalues [heads], estimates of their relative errors, and right and left eigenvectors."""

    value: Tensor
    error: Tensor
    right: Tensor
    left: Tensor


def by_filter(first: Tensor, second: Tensor, tolerance: float) -> Leading:
    """Of `first @ second` [heads, r, r], by filtered subspace iteration (Zhou, Saad and others, 2006).

    A polynomial that stays small on [0, c] and grows beyond it is applied to a few vectors, c being their
    smallest Ritz value; then Rayleigh and Ritz, in the scalar product of `second`, in which the operator is
    symmetric. A Ritz value is never above the largest eigenvalue. It is below by at most residual^2 / gap,
    and by a few residuals where the leading values are so close that no gap is seen.
    """
    heads, inner = first.shape[0], first.shape[-1]
    generator = torch.Generator(first.device).manual_seed(0)
    start = torch.randn(
        1, min(BLOCK, inner), inner, generator=generator, dtype=first.dtype, device=first.device
    )
    rows = start.expand(heads, -1, -1) @ first
    for remaining in reversed(range(ROUNDS)):
        images = rows @ second
        applied = images @ first
        turn, values = _ritz(rows @ images.mT, applied @ images.mT)
        rows, applied = turn @ rows, turn @ applied
        right = rows[:, -1:]  # applied afresh, free of the rounding in nearly parallel rows
        left = right @ second
        after = left @ first
        norm = (right * left).sum(-1, keepdim=True)
        top = divided((left * after).sum(-1, keepdim=True), norm)
        rest = after - top * right
        residual = divided(((rest @ second) * rest).sum(-1, keepdim=True), norm).clamp_min(0).double().sqrt()
        top, residual = top.double()[:, 0, 0], residual[:, 0, 0]
        gap = (top - values[:, 0]).clamp_min(0)
        error = torch.where(gap > 10 * residual, divided(residual.square(), gap), 4 * residual)
        error = torch.where(top > 0, divided(error, top), residual)
        if remaining == 0 or (error <= tolerance).all():
            break
        cut = torch.maximum(values[:, 0], 0.25 * top)[:, None, None]  # no lower, or the filter overflows
        factor = divided(torch.full_like(cut, 2.0), cut).to(rows.dtype)
        size = rows.abs().amax(-1, keepdim=True)
        before = divided(rows, size)
        rows = factor * divided(applied, size) - before
        for _ in range(DEGREE - 1):  # T_k+1(x) = 2 x T_k(x) - T_k-1(x), with x = factor * first @ second - 1
            images = (rows @ second).mul_(2 * factor)
            before, rows = rows, torch.baddbmm(before, images, first, beta=-1).sub_(rows, alpha=2)
        rows = divided(rows, rows.abs().amax(-1, keepdim=True))
    length = norm[:, 0].sqrt()
    return Leading(top, error, divided(right[:, 0], length), divided(left[:, 0], length))


def _ritz(overlap: Tensor, energy: Tensor) -> tuple[Tensor, Tensor]:
    """The turn to Ritz vectors (rows) and their values, smallest first; directions that are lost in rounding
    get 0."""
    cutoff = 100 * torch.finfo(overlap.dtype).eps
    finite = (overlap.isfinite() & energy.isfinite()).all(-1).all(-1)[:, None, None]
    wide, energy_wide = torch.where(finite, overlap, 0.0).double(), torch.where(finite, energy, 0.0).double()
    scale = divided(torch.ones_like(wide[:, 0]), wide.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt())
    lengths, directions = torch.linalg.eigh(scale[:, :, None] * wide * scale[:, None, :])
    shrink = torch.where(lengths > cutoff * lengths[:, -1:], lengths.clamp_min(0).rsqrt(), 0.0)
    white = scale[:, :, None] * directions * shrink[:, None, :]
    values, vectors = torch.linalg.eigh(white.mT @ energy_wide @ white)
    turn = (white @ vectors).mT.to(overlap.dtype)
    return turn, torch.where(finite[:, 0], values.clamp_min(0), torch.nan)


def by_squaring(matrix: Tensor) -> Tensor:
    """Largest eigenvalue [heads] of matrices [heads, r, r] whose eigenvalues are all >= 0, from traces of
    their powers.

    With q = 64^s, `tr M^2q / tr M^q` is at most the q-th power of the largest, and short of it by a factor of
    at most sqrt(r): no start vector, no gap, nothing to wait for.
    """
    scale = _trace(matrix)
    power, logarithm = divided(matrix, scale), torch.zeros_like(scale)  # of tr M^q, M having trace 1
    for _ in range(POWER_ROUNDS):
        power = torch.linalg.matrix_power(power, POWER)
        trace = _trace(power)
        power, logarithm = divided(power, trace), POWER * logarithm + trace.log()
    logarithm = logarithm + (power * power.mT).sum((-2, -1), keepdim=True).log()
    largest = scale * (logarithm / POWER**POWER_ROUNDS).exp()
    return torch.where(scale > 0, largest, scale)[:, 0, 0]


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)[:, None, None]
