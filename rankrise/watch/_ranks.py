"""Ranks that count by size: each takes singular values [..., k], largest first, or a change, and gives one
number [...] per matrix.

A zero matrix has rank 0 by all of them. The stable rank needs no singular values: see `stable_rank`.
"""

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import shown, typed
from rankrise.watch._change import Change
from rankrise.watch._factors import Matrix, as_tensor
from rankrise.watch._gram import divided
from rankrise.watch._spectra import singular_values

Values = Matrix | Change
"""Singular values, or a change that has some."""


def effective_rank(values: Values) -> Tensor:
    """Exponential of the entropy of the singular values, taken as shares of their sum (Roy and Vetterli
    2007).

    >>> effective_rank(torch.tensor([2.0, 2.0, 0.0])), effective_rank(torch.zeros(3))
    (tensor(2.), tensor(0.))
    """
    values = _singular(values)
    shares = divided(values, values.sum(-1, keepdim=True))
    entropy = torch.special.entr(shares).sum(-1)
    return torch.where(values.amax(-1) > 0, entropy.exp(), 0.0)


@typed
def energy_rank(values: Values, share: float = 0.9) -> Tensor:
    """How many leading singular values hold `share` of the energy, the sum of squares.

    >>> energy_rank(torch.tensor([3.0, 1.0, 1.0]), 0.8), energy_rank(torch.tensor([3.0, 1.0, 1.0]), 0.9)
    (tensor(1), tensor(2))
    """
    if not 0 < share <= 1:
        raise RankriseError(
            f"The share of the energy is {share}: pass a number above 0 and at most 1, such as 0.9."
        )
    values = _singular(values)
    held = normalised_spectrum(values).double().square().cumsum(-1)
    enough = share * held[..., -1:] * (1 - 4 * torch.finfo(torch.float64).eps)
    return torch.where(values.amax(-1) > 0, (held < enough).sum(-1) + 1, 0)


@typed
def rank_above(values: Values, threshold: float = 1e-3) -> Tensor:
    """How many singular values exceed `threshold` times the largest.

    >>> rank_above(torch.tensor([5.0, 1.0, 1e-4]), 1e-3)
    tensor(2)
    """
    if not 0 <= threshold < 1:
        raise RankriseError(
            f"The threshold is {threshold}: pass a share of the largest value, from 0 up to 1, such as 1e-3."
        )
    values = _singular(values)
    return (values > threshold * values.amax(-1, keepdim=True)).sum(-1)


def normalised_spectrum(values: Values) -> Tensor:
    """Singular values over their largest: what the paper's Figures 1 and 5 draw. Zeros stay zeros.

    >>> normalised_spectrum(torch.tensor([4.0, 1.0, 0.0]))
    tensor([1.0000, 0.2500, 0.0000])
    """
    values = _singular(values)
    return divided(values, values.amax(-1, keepdim=True))


def _singular(values: Values) -> Tensor:
    if isinstance(values, Change):
        return singular_values(values)
    found = as_tensor(values)
    if found.ndim == 0 or found.shape[-1] == 0 or found.is_complex():
        raise RankriseError(f"values is {shown(found)}: pass one singular value or more, in a row, all real.")
    return found
