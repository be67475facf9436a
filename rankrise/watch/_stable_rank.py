"""The stable rank `|W|_F^2 / |W|_2^2` of `W = left @ right^T`, without a decomposition.

With the Gram matrices A and B of the factors, `|W|_F^2 = sum(A * B)`, and `|W|_2^2` is the largest eigenvalue
of `A B`, found by a filtered iteration on the CPU and by repeated squaring on an accelerator, where products
are nearly free. Heads on which the quick way is not sure of its digits are done again from all their singular
values.
"""

import torch
from torch import Tensor

from rankrise.watch._batches import batched
from rankrise.watch._change import Change, change_blocks, change_factors, identity, refuse_beside_a_change
from rankrise.watch._factors import Blocks, Matrix, as_tensor, checked, refuse_non_finite
from rankrise.watch._gram import CANCELLATION_LIMIT, divided, grams, widened
from rankrise.watch._leading_value import by_filter, by_squaring
from rankrise.watch._spectra import factor_values

# Relative error at which the iteration for |W|_2^2 stops, and that float32 rounding may add.
TOLERANCE = 2e-6
# Rounding in a float32 Gram matrix of unit columns, entry by entry: about 4e-8 is seen.
FLOAT32_NOISE = 2e-7
# Column norms between which float32 squares neither overflow nor vanish.
FLOAT32_RANGE = (1e-12, 1e15)


def stable_rank(left: Matrix | Change, right: Matrix | None = None, *, name: str = "") -> Tensor:
    """Stable rank of `left @ right^T`, float64 [...]; of `left` itself without `right`; of a `change`. A zero
    matrix has 0.

    `left` is [..., m, r] and `right` [..., n, r]; the relative error is below 1e-5. A change is taken in
    float32 where that is enough, a few heads at a time. `name` (the layer) is for error messages.

    >>> stable_rank(torch.eye(6)[:, :2] * torch.tensor([2.0, 1.0]), torch.eye(6)[:, :2]).round(decimals=4)
    tensor(1.2500, dtype=torch.float64)
    >>> from rankrise import watch
    >>> k, q = torch.eye(4)[:, :2], torch.eye(4)[:, :2]
    >>> stable_rank(watch.change((k, q), (k + 1, q))).round(decimals=4)
    tensor(1., dtype=torch.float64)
    """
    if isinstance(left, Change):
        refuse_beside_a_change(right)
        if not left.is_whole:
            return _finite(batched(_change_ranks, *left.weights, larger=2), name)
        left = left.after[0].double() - left.before[0].double()
    if right is None:
        left = as_tensor(left)
        left = left.mT if left.ndim >= 2 and left.shape[-2] < left.shape[-1] else left
        right = identity(left) if left.ndim >= 2 else left
    return _finite(batched(_factor_ranks, *checked(left, right, name), larger=2), name)


def _factor_ranks(left: Tensor, right: Tensor) -> Tensor:
    if _float32_serves(left, right):
        ranks, sure = _quick_ranks((left.float(),), (right.float(),))
    else:
        wide_left, wide_right, _ = widened(left, right)
        ranks, sure = _quick_ranks((wide_left,), (wide_right,))
    return ranks if sure.all() else _completed(ranks, sure, factor_values(left[~sure], right[~sure]))


def _change_ranks(k0: Tensor, q0: Tensor, kt: Tensor, qt: Tensor) -> Tensor:
    """A float32 difference is rounded once, to 6e-8 of itself: no worse than the Gram matrices."""
    weights = (k0, q0, kt, qt)
    if any(weight.dtype == torch.float64 for weight in weights):
        return _factor_ranks(*change_factors(k0, q0, kt, qt))
    dtype = torch.float32 if _float32_serves(*weights) else torch.float64
    ranks, sure = _quick_ranks(*change_blocks(*(weight.to(dtype) for weight in weights)))
    if sure.all():
        return ranks
    return _completed(ranks, sure, factor_values(*change_factors(*(weight[~sure] for weight in weights))))


def _quick_ranks(left: Blocks, right: Blocks) -> tuple[Tensor, Tensor]:
    """Stable ranks [heads] in the factors' own precision, and where they are sure to be right."""
    gram = grams(left, right)
    energy = (gram.left * gram.right).sum(-1).sum(-1, dtype=torch.float64)
    left_size, right_size = (torch.linalg.matrix_norm(side).double() for side in (gram.left, gram.right))
    if energy.device.type != "cpu":
        largest = by_squaring(gram.left @ gram.right)
        return divided(energy, largest), left_size * right_size <= CANCELLATION_LIMIT * largest
    leading = by_filter(gram.left, gram.right, TOLERANCE)
    sure = (leading.error <= TOLERANCE) & ((leading.value > 0) | (energy == 0))
    if gram.left.dtype == torch.float64:
        sure &= left_size * right_size <= CANCELLATION_LIMIT * leading.value
    else:
        spread = leading.right.square().sum(-1) + divided(leading.left.square().sum(-1), leading.value)
        sure &= FLOAT32_NOISE * (left_size + right_size) <= TOLERANCE * energy
        sure &= FLOAT32_NOISE * spread <= TOLERANCE
        sure &= _in_range(left, gram.norms[0]) & _in_range(right, gram.norms[1])
    return divided(energy, leading.value), sure


def _float32_serves(*factors: Tensor) -> bool:
    """Whether float32 products of these are float32 products: CPU only, and no one has allowed narrower
    ones."""
    narrow = all(factor.device.type == "cpu" and factor.dtype != torch.float64 for factor in factors)
    precision = getattr(torch.backends.mkldnn, "matmul").fp32_precision  # noqa: B009 (not in torch's type stubs)
    return narrow and precision in ("none", "ieee")


def _in_range(factor: Blocks, norms: Tensor) -> Tensor:
    """Where [heads] the squares of all columns were neither too large nor too small for float32."""
    smallest, largest = FLOAT32_RANGE
    zero = norms == 0
    if zero.any():
        zero = zero & (torch.cat(factor, -1) == 0).all(-2)
    return (zero | ((norms > smallest) & (norms < largest))).all(-1)


def _completed(ranks: Tensor, sure: Tensor, values: Tensor) -> Tensor:
    energy = values / values[:, :1]
    ranks[~sure] = torch.where(values[:, 0] == 0, 0.0, energy.square().sum(-1))
    return ranks


def _finite(ranks: Tensor, name: str) -> Tensor:
    refuse_non_finite(ranks.isnan(), name)
    return ranks
