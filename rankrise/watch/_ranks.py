"""The rank measures: stable, effective and energy rank. A zero matrix has rank 0 by all of them.

The stable rank needs only the largest eigenvalue of `A B`, for the Gram matrices A and B of a product's
factors: from subspace iteration on the CPU, and from fewer, larger products on an accelerator.
"""

import math

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._change import Change, Factors, Matrix, as_change, as_tensor, divided, refuse_non_finite
from rankrise.watch._spectra import (
    CANCELLATION_LIMIT,
    Blocks,
    balanced,
    factor_values,
    plain_grams,
    singular_values,
)

Values = Matrix | Factors | Change
"""Singular values [..., k], largest first, or a change, or the two factors of a product."""

TOLERANCE = 2e-6  # relative error at which the iteration for |W|_2^2 stops, and that float32 may add
FLOAT32_NOISE = 2e-7  # rounding in a float32 Gram matrix of unit columns, by entry: about 4e-8 is seen
SMALLEST = 1e-12  # norm of a column below which float32 squares vanish


def effective_rank(values: Values) -> Tensor:
    """Exponential of the entropy of the singular values, as shares of their sum (Roy and Vetterli 2007).

    >>> effective_rank(torch.tensor([2.0, 2.0, 0.0])), effective_rank(torch.zeros(3))
    (tensor(2.), tensor(0.))
    """
    values = _singular(values)
    shares = divided(values, values.sum(-1, keepdim=True))
    entropy = torch.special.entr(shares).sum(-1)
    return torch.where(values.amax(-1) > 0, entropy.exp(), 0.0)


def energy_rank(values: Values, share: float = 0.9) -> Tensor:
    """How many leading singular values hold `share` of the energy, the sum of squares.

    >>> energy_rank(torch.tensor([3.0, 1.0, 1.0]), 0.8), energy_rank(torch.tensor([3.0, 1.0, 1.0]), 0.9)
    (tensor(1), tensor(2))
    """
    if not 0 < share <= 1:
        raise RankriseError(f"share is {share}: pass a number above 0 and at most 1, such as 0.9.")
    values = _singular(values)
    held = divided(values, values.amax(-1, keepdim=True)).double().square().cumsum(-1)
    enough = share * held[..., -1:] * (1 - 4 * torch.finfo(torch.float64).eps)
    return torch.where(values.amax(-1) > 0, (held < enough).sum(-1) + 1, 0)


def _singular(values: Values) -> Tensor:
    return singular_values(values) if isinstance(values, Change | tuple) else as_tensor(values)


def stable_rank(left: Matrix | Factors | Change, right: Matrix | None = None, *, name: str = "") -> Tensor:
    """`|W|_F^2 / |W|_2^2`, float64 [...], to a relative error of 1e-5; takes what `singular_values` takes.

    >>> stable_rank(torch.eye(6)[:, :2] * torch.tensor([2.0, 1.0]), torch.eye(6)[:, :2]).round(decimals=4)
    tensor(1.2500, dtype=torch.float64)
    """
    learned = as_change(left, right, name=name)
    if learned.is_whole:
        matrix, _ = learned.factors()
        matrix = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
        eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
        learned = Change((), (matrix, eye.expand(*matrix.shape[:-2], -1, -1)))
    ranks = learned.in_chunks(_stable_ranks, larger=2)
    refuse_non_finite(ranks.isnan(), name)
    return ranks


def _stable_ranks(part: Change) -> Tensor:
    """Stable ranks [heads] of a chunk; heads that may lose digits are computed from all singular values."""
    # float32 serves where products of it are exact: a difference is rounded once, to 6e-8 of itself
    precision = getattr(torch.backends.mkldnn, "matmul").fp32_precision  # noqa: B009 (not in torch's stubs)
    double = any(weight.dtype == torch.float64 for weight in part.weights)
    narrow = part.after[0].device.type == "cpu" and not double and precision in ("none", "ieee")
    ranks, sure = _quick_ranks(*part.blocks(torch.float32 if narrow else torch.float64))
    if not sure.all():
        rest = Change(*(tuple(weight[~sure] for weight in side) for side in (part.before, part.after)))
        values = factor_values(*rest.factors())
        ranks[~sure] = divided(values, values[:, :1]).square().sum(-1)
    return ranks


def _quick_ranks(left: Blocks, right: Blocks) -> tuple[Tensor, Tensor]:
    """Stable ranks [heads] in the factors' own precision, and where they are sure to be right."""
    gram = balanced(plain_grams(left, right))
    energy = (gram.left * gram.right).sum(-1).sum(-1, dtype=torch.float64)
    left_size, right_size = (torch.linalg.matrix_norm(side).double() for side in (gram.left, gram.right))
    if energy.device.type != "cpu":
        largest = by_squaring(gram.left @ gram.right)
        return divided(energy, largest), left_size * right_size <= CANCELLATION_LIMIT * largest
    largest, error, right_vector, left_vector = by_filter(gram.left, gram.right, TOLERANCE)
    sure = (error <= TOLERANCE) & ((largest > 0) | (energy == 0))
    if gram.left.dtype == torch.float64:
        sure &= left_size * right_size <= CANCELLATION_LIMIT * largest
    else:
        spread = right_vector.square().sum(-1) + divided(left_vector.square().sum(-1), largest)
        sure &= FLOAT32_NOISE * (left_size + right_size) <= TOLERANCE * energy
        sure &= FLOAT32_NOISE * spread <= TOLERANCE
        sure &= ((gram.norms == 0) | (gram.norms > SMALLEST)).all(-1).all(0)
    return divided(energy, largest), sure


BLOCK = 16  # vectors iterated together: reading the matrices costs the same for a few
DEGREE, LATER_DEGREE, ROUNDS = 8, 4, 12  # of the Chebyshev filter at first and later; the most rounds
# The first filter lifts the leading vector 100 times over the others; with more, float32 rows get parallel.
LOWEST_CUT = 2 / (math.cosh(math.acosh(100.0) / DEGREE) + 1)
NOTHING = 1e-6  # a smallest Ritz value below this share of the largest: the vectors span the whole range
POWER, POWER_ROUNDS = 64, 3  # powers are taken 64 at a time, which stays in float64's range


def by_filter(first: Tensor, second: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Leading eigenvalues of `first @ second` [heads, r, r] and their relative errors [heads], right and left
    eigenvectors [heads, r], by Chebyshev-filtered subspace iteration (Zhou et al. 2006): a polynomial that
    stays small up to the smallest Ritz value is applied to a few vectors.
    """
    heads, inner = first.shape[0], first.shape[-1]
    generator = torch.Generator(first.device).manual_seed(0)
    shape = 1, min(BLOCK, inner), inner
    start = torch.randn(shape, generator=generator, dtype=first.dtype, device=first.device)
    rows, found = start.expand(heads, -1, -1) @ first, None
    for done in range(ROUNDS):
        images = rows @ second
        applied = images @ first
        turn, values = _ritz(rows @ images.mT, applied @ images.mT)
        rows, applied = turn @ rows, turn @ applied
        if done or (values[:, 0] <= NOTHING * values[:, -1]).all():
            found = _assessed(first, second, rows[:, -1:], values[:, 0])
            if (found[1] <= tolerance).all():
                break
        cut = torch.maximum(values[:, 0], LOWEST_CUT * values[:, -1])[:, None, None]
        factor = divided(torch.full_like(cut, 2.0), cut).to(rows.dtype)
        before, rows = rows, factor * applied - rows
        for _ in range((LATER_DEGREE if done else DEGREE) - 1):
            # T_k+1(x) = 2 x T_k(x) - T_k-1(x), with x = factor * first @ second - 1
            images = (rows @ second).mul_(2 * factor)
            before, rows = rows, torch.baddbmm(before, images, first, beta=-1).sub_(rows, alpha=2)
        rows = divided(rows, rows.abs().amax(-1, keepdim=True))
    assert found is not None
    return found


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


def _assessed(
    first: Tensor, second: Tensor, right: Tensor, lowest: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The result of `by_filter` for Ritz vectors [heads, 1, r]; `lowest` [heads] are the smallest values.

    The value is too small by at most residual^2 / gap, or a few residuals if no gap is seen.
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
    return value, error, divided(right[:, 0], length), divided(left[:, 0], length)


def by_squaring(matrix: Tensor) -> Tensor:
    """Largest eigenvalue [heads] of matrices [heads, r, r] with eigenvalues >= 0, from traces of powers.

    With q = 64^s, `tr M^2q / tr M^q` is at most the q-th power of the largest, and short of it by a factor of
    at most sqrt(r). After the three rounds, the largest is known to log(r) / 64^3 / 2: 1e-5 for r = 256.
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
