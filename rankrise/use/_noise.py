"""The noise that storing weights in few bits puts into their change."""

from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.use._moment import Root


class Noise(NamedTuple):
    """Of a matrix of independent rounding errors: their largest singular value to expect, and square."""

    largest: float
    square: float


def spacing(weight: Tensor) -> Tensor:
    """The distance between the numbers of the weight's dtype around each of its entries, in float32.

    >>> spacing(torch.tensor([1.0, 1.5, 2.0, 0.0], dtype=torch.bfloat16))
    tensor([0.0078, 0.0078, 0.0156, 0.0000])
    """
    limits = torch.finfo(weight.dtype)
    size = weight.float().abs()
    exponents = torch.frexp(size).exponent - 1
    gaps = torch.ldexp(torch.full_like(size, limits.eps), exponents)
    return torch.where(size > 0, gaps.clamp_min(limits.smallest_normal * limits.eps), 0)


def rounding(before: Tensor, after: Tensor, inputs: Root | None, outputs: Root | None) -> Noise:
    """The noise of `after - before`, [out, in], where both were rounded to the dtype they are stored in.

    Rounding errors are uniform over the spacing s, with variance s^2 / 12. A matrix of independent ones has
    the largest singular value `sqrt(largest row sum) + sqrt(largest column sum)` of their variances, as
    for equal ones sigma (sqrt(m) + sqrt(n)); under the roots R, L of moments, this times
    `(|R|_F |L| + |R| |L|_F) / (sqrt(m) + sqrt(n))` (Chevet's inequality).
    """
    variances = (spacing(before).square() + spacing(after).square()) / 12
    rows, columns = variances.sum(1), variances.sum(0)
    largest = float(rows.max().sqrt() + columns.max().sqrt())
    square = float(rows.double().sum())
    out, into = before.shape
    left_square, left_norm = (outputs.square, outputs.norm) if outputs else (float(out), 1.0)
    right_square, right_norm = (inputs.square, inputs.norm) if inputs else (float(into), 1.0)
    if inputs or outputs:
        plain = out**0.5 + into**0.5
        largest *= (left_square**0.5 * right_norm + left_norm * right_square**0.5) / plain
        square *= left_square * right_square / (out * into)
    return Noise(largest, square)
