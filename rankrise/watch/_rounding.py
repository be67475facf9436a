"""The noise floor of a change: what storing the weights in few bits adds to it.

A stored weight has a rounding error that is uniform over the spacing s of its dtype, with variance s^2 / 12.
Errors before and after count as independent.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.watch._change import divided

SAMPLE = 64  # rows and columns of a float32 matrix that show whether it was narrower before
EXPONENT = 0x7F800000  # the exponent bits of float32: a number without the others is its power of two
POWER_STEPS = 12  # give the largest value of a Gram matrix to a few percent


class Noise(NamedTuple):
    """Expected largest singular value [heads] of matrices of rounding errors, and sum of all squares."""

    largest: Tensor
    square: Tensor


class Stored(NamedTuple):
    """A rounded factor [heads, d, r]: its Gram matrix [heads, r, r], its `variances` [heads, r], and d."""

    gram: Tensor
    variance: Tensor
    size: int


def spacing(weight: Tensor) -> Tensor:
    """Distance, in float32, between the numbers of the weight's dtype around each of its entries."""
    return _powers(weight).mul_(torch.finfo(weight.dtype).eps)


def _powers(weight: Tensor) -> Tensor:
    """The powers of two at or below the absolute values, in a new float32 tensor."""
    if weight.dtype == torch.bfloat16:  # the upper half of a float32
        return (weight.view(torch.int16) & (EXPONENT >> 16)).view(torch.bfloat16).float()
    wide = weight.float()
    powers = (wide.view(torch.int32) & EXPONENT).view(torch.float32)
    if weight.dtype == torch.float16:
        powers = powers.clamp_min_(torch.finfo(torch.float16).smallest_normal).masked_fill_(wide == 0, 0.0)
    return powers


def as_stored(weight: Tensor) -> Tensor:
    """The weight [..., m, n] in the dtype it was rounded to: float32 may hold what was narrower before."""
    if weight.dtype == torch.float64:
        weight = weight.float()
    if weight.dtype == torch.float32:
        sample = weight[..., :SAMPLE, :SAMPLE]
        for dtype in (torch.bfloat16, torch.float16) if sample.any() else ():
            if torch.equal(sample.to(dtype).float(), sample):
                return weight.to(dtype)
    return weight


def variances(factor: Tensor) -> Tensor:
    """Sum of the rounding errors' variances in each column of a factor [heads, d, r]: [heads, r]."""
    factor = as_stored(factor)
    return _powers(factor).square_().sum(-2).mul_(torch.finfo(factor.dtype).eps ** 2 / 12)


def product_noise(*pairs: tuple[Stored, Stored]) -> Noise:
    """Noise [heads] of a sum of products `left @ right^T` of rounded factors: those before and those after.

    To first order it is `left E^T + D right^T` for each pair, with errors D and E of the factors. With sums v
    of the variances in the columns of E, the first term has the square `sum_j |left_j|^2 v_j`. Its largest
    value is about `|L| sqrt(n) + |L|_F` for `L = left diag(sqrt(v / n))` (Chevet's inequality). Terms with
    errors on the same side add up in squares, and the two sides hardly meet. The square is right to a few
    percent, the largest to a third.
    """
    scaled = []
    for side in (0, 1):
        for pair in pairs:
            weight, error = pair[side], pair[1 - side]
            root = error.variance.div(error.size).sqrt()
            scaled.append(weight.gram.float() * root.unsqueeze(-1) * root.unsqueeze(-2))
    both = torch.stack(scaled)
    sizes = torch.tensor([[pairs[0][1].size], [pairs[0][0].size]], device=both.device)
    energy, norm = (
        number.unflatten(0, (2, -1)).sum(1)
        for number in (both.diagonal(dim1=-2, dim2=-1).sum(-1), _largest(both))
    )
    largest = (sizes * norm).sqrt() + energy.sqrt()
    return Noise(largest.amax(0).double(), (sizes * energy).sum(0).double())


def matrix_noise(before: Tensor, after: Tensor) -> Noise:
    """Noise of `after - before` [m, n], from one draw of errors of one standard deviation, up or down."""
    error = spacing(before).square_().add_(spacing(after).square_()).div_(12)
    square = error.sum(1).double().sum()
    generator = torch.Generator().manual_seed(0)  # on the CPU, so that a GPU draws the same
    signs = torch.empty(error.shape, dtype=torch.int8).random_(0, 2, generator=generator).mul_(2).sub_(1)
    error = divided(error.sqrt_(), square.sqrt().float()).mul_(signs.to(error.device))
    vector = torch.randn(error.shape[1], generator=generator).to(error.device)
    for _ in range(POWER_STEPS):
        vector = error.mT @ (error @ divided(vector, torch.linalg.vector_norm(vector)))
    return Noise((square * torch.linalg.vector_norm(vector)).sqrt(), square)


def _largest(gram: Tensor) -> Tensor:
    """Largest eigenvalue [...] of Gram matrices [..., r, r]."""
    trace = gram.diagonal(dim1=-2, dim2=-1).sum(-1)
    unit = divided(gram, trace[..., None, None])
    generator = torch.Generator().manual_seed(0)
    before = vector = torch.randn(gram.shape[-1], generator=generator).to(gram.device)
    for _ in range(POWER_STEPS):
        before, vector = vector, torch.linalg.vecdot(unit, vector.unsqueeze(-2))
    return trace * divided(*(torch.linalg.vector_norm(one, dim=-1) for one in (vector, before)))
