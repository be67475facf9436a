"""The largest eigenvalue of `A B` for two symmetric positive semidefinite matrices per head, without a
decomposition.

For Gram matrices A and B of two factors it is the squared spectral norm of their product. Two ways: vectors
on the CPU, where reading the matrices is what costs, and whole powers on an accelerator, where launching a
kernel is.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.watch._factors import divided

# Vectors iterated together: reading the matrices costs the same for a few, and a cluster of as many leading
# values does no harm.
BLOCK = 16
# Degrees of the Chebyshev filter the first time, which is mostly enough, and later, and how often it is
# applied before the iteration gives up.
DEGREE, LATER_DEGREE = 8, 4
ROUNDS = 12
# By how much the first filter lifts the leading vector over those it damps. More, and the rows become
# parallel to within float32's resolution. The cut is then at this share of the largest value, or above.
GROWTH = 100.0
LOWEST_CUT = 2 / (math.cosh(math.acosh(GROWTH) / DEGREE) + 1)
# A smallest Ritz value below this share of the largest: the vectors span all there is.
NOTHING = 1e-6
# Powers are taken 64 at a time, which stays in float64's range; after s such rounds the largest
# eigenvalue of r x r matrices is known to log(r) / 64^s / 2: 1e-5 for r = 256.
POWER = 64
POWER_ROUNDS = 3


class Leading(NamedTuple):
    """Largest eigenvalues [heads], estimates of their relative errors, and right and left eigenvectors."""

    value: Tensor
    error: Tensor
    right: Tensor
    left: Tensor


def by_filter(first: Tensor, second: Tensor, tolerance: float) -> Leading:
    """Leading eigenvalue of `first @ second` [heads, r, r], by filtered subspace iteration (Zhou, Saad and
    others, 2006).

    A polynomial that stays small on [0, c] and grows beyond it is applied to a few vectors, c being their
    smallest Ritz value or a share of the largest; then Rayleigh and Ritz, in the scalar product of `second`,
    in which the operator is symmetric. Each head keeps the best of all rounds.
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
            found = _assessed(first, second, rows[:, -1:], values[:, 0])
            best = _better(best, found) if best else found
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
    """The turn to Ritz vectors (rows) and their values, smallest first; 0 for directions lost in rounding."""
    cutoff = 10 * torch.finfo(overlap.dtype).eps
    finite = (overlap.isfinite() & energy.isfinite()).all(-1).all(-1)[:, None, None]
    wide, energy_wide = torch.where(finite, overlap, 0.0).double(), torch.where(finite, energy, 0.0).double()
    scale = divided(torch.ones_like(wide[:, 0]), wide.diagonal(dim1=-2, dim2=-1).clamp_min(0).sqrt())
    lengths, directions = torch.linalg.eigh(scale[:, :, None] * wide * scale[:, None, :])
    shrink = torch.where(lengths > cutoff * lengths[:, -1:], lengths.clamp_min(0).rsqrt(), 0.0)
    white = scale[:, :, None] * directions * shrink[:, None, :]
    values, vectors = torch.linalg.eigh(white.mT @ energy_wide @ white)
    turn = (white @ vectors).mT.to(overlap.dtype)
    return turn, torch.where(finite[:, 0], values.clamp_min(0), torch.nan)


def _assessed(first: Tensor, second: Tensor, right: Tensor, lowest: Tensor) -> Leading:
    """The value and error of a Ritz vector [heads, 1, r]; `lowest` [heads] is the smallest Ritz value.

    A Ritz value is never above the largest eigenvalue. It is below by at most residual^2 / gap, and by a few
    residuals where the leading values are so close that no gap is seen. The operator is applied afresh, free
    of the rounding in the nearly parallel rows from which the vector was put together.
    """
    left = right @ second
    after = left @ first
    norm = (right * left).sum(-1, keepdim=True)
    value = divided((left * after).sum(-1, keepdim=True), norm)
    rest = after - value * right
    residual = divided(((rest @ second) * rest).sum(-1, keepdim=True), norm).clamp_min(0).double().sqrt()
    value, residual, length = value.double()[:, 0, 0], residual[:, 0, 0], norm[:, 0].sqrt()
    gap = (value - lowest).clamp_min(0)
    error = torch.where(gap > 10 * residual, divided(residual.square(), gap), 4 * residual)
    error = torch.where(value > 0, divided(error, value), residual)
    return Leading(value, error, divided(right[:, 0], length), divided(left[:, 0], length))


def _better(one: Leading, other: Leading) -> Leading:
    """Take the one with the smaller error, head by head."""
    which = other.error < one.error
    columns = which[:, None]
    return Leading(
        torch.where(which, other.value, one.value),
        torch.where(which, other.error, one.error),
        torch.where(columns, other.right, one.right),
        torch.where(columns, other.left, one.left),
    )


def by_squaring(matrix: Tensor) -> Tensor:
    """Largest eigenvalue [heads] of matrices [heads, r, r] with eigenvalues >= 0, from traces of powers.

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
