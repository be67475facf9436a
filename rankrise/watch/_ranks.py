"""The rank measures: stable, effective and energy rank, and the rank above a threshold.

A zero matrix has rank 0 by all of them. All but the stable rank are computed from singular values.
"""

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._change import Change, Matrix, as_change, as_tensor, divided, refuse_non_finite
from rankrise.watch._leading import by_filter, by_squaring
from rankrise.watch._spectra import CANCELLATION_LIMIT, Blocks, factor_values, grams, singular_values

Values = Matrix | Change
"""Singular values [..., k], largest first, or a change."""

# Relative error at which the iteration for |W|_2^2 stops, and that float32 rounding may add.
TOLERANCE = 2e-6
# Rounding in a float32 Gram matrix of unit columns, entry by entry: about 4e-8 is seen.
FLOAT32_NOISE = 2e-7
# Below this norm of a column, float32 squares vanish.
SMALLEST = 1e-12


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


def rank_above(values: Values, threshold: float = 1e-3) -> Tensor:
    """How many singular values exceed `threshold` times the largest."""
    if not 0 <= threshold < 1:
        raise RankriseError(f"threshold is {threshold}: pass a share of the largest value, such as 1e-3.")
    values = _singular(values)
    return (values > threshold * values.amax(-1, keepdim=True)).sum(-1)


def _singular(values: Values) -> Tensor:
    return singular_values(values) if isinstance(values, Change) else as_tensor(values)


def stable_rank(left: Matrix | Change, right: Matrix | None = None, *, name: str = "") -> Tensor:
    """`|W|_F^2 / |W|_2^2`, float64 [...], to a relative error of 1e-5; takes what `singular_values` takes.

    No decomposition: with the Gram matrices A and B of the factors, `|W|_F^2 = sum(A * B)`, and `|W|_2^2` is
    the largest eigenvalue of `A B`. Heads where float32 or the iteration may lose digits are computed again
    from all their singular values.

    >>> stable_rank(torch.eye(6)[:, :2] * torch.tensor([2.0, 1.0]), torch.eye(6)[:, :2]).round(decimals=4)
    tensor(1.2500, dtype=torch.float64)
    >>> from rankrise import watch
    >>> k, q = torch.eye(4)[:, :2], torch.eye(4)[:, :2]
    >>> stable_rank(watch.change((k, q), (k + 1, q))).round(decimals=4)
    tensor(1., dtype=torch.float64)
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
    """Stable ranks [heads] of a chunk; a head that holds nan or inf comes out as nan.

    float32 serves if products on this CPU are float32 products: a difference is rounded once, to 6e-8 of
    itself, no worse than the Gram matrices.
    """
    precision = getattr(torch.backends.mkldnn, "matmul").fp32_precision  # noqa: B009 (not in torch's stubs)
    double = any(weight.dtype == torch.float64 for weight in part.weights)
    narrow = part.after[0].device.type == "cpu" and not double and precision in ("none", "ieee")
    weights = [weight.to(torch.float32 if narrow else torch.float64) for weight in part.weights]
    if part.before:
        k0, q0, kt, qt = weights
        ranks, sure = _quick_ranks((kt, kt - k0), (qt - q0, q0))
    else:
        ranks, sure = _quick_ranks(*((weight,) for weight in weights))
    if not sure.all():
        rest = Change(*(tuple(weight[~sure] for weight in side) for side in (part.before, part.after)))
        values = factor_values(*rest.factors())
        ranks[~sure] = divided(values, values[:, :1]).square().sum(-1)
    return ranks


def _quick_ranks(left: Blocks, right: Blocks) -> tuple[Tensor, Tensor]:
    """Stable ranks [heads] in the factors' own precision, and where they are sure to be right."""
    gram = grams(left, right)
    energy = (gram.left * gram.right).sum(-1).sum(-1, dtype=torch.float64)
    left_size, right_size = (torch.linalg.matrix_norm(side).double() for side in (gram.left, gram.right))
    if energy.device.type != "cpu":
        largest = by_squaring(gram.left @ gram.right)
        return divided(energy, largest), left_size * right_size <= CANCELLATION_LIMIT * largest
    leading = by_filter(gram.left, gram.right, TOLERANCE)
    largest, error = leading.value[:, 0], leading.error[:, 0]
    sure = (error <= TOLERANCE) & ((largest > 0) | (energy == 0))
    if gram.left.dtype == torch.float64:
        sure &= left_size * right_size <= CANCELLATION_LIMIT * largest
    else:
        spread = leading.right.square().sum(-1) + divided(leading.left.square().sum(-1), largest)
        sure &= FLOAT32_NOISE * (left_size + right_size) <= TOLERANCE * energy
        sure &= FLOAT32_NOISE * spread <= TOLERANCE
        sure &= ((gram.norms == 0) | (gram.norms > SMALLEST)).all(-1).all(0)
    return divided(energy, largest), sure
