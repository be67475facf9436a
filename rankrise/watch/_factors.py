"""What is taken as a matrix: a tensor, an array or lists of numbers; or two thin factors, left and right."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rankrise.foundations.errors import RankriseError

Matrix = Tensor | ArrayLike
"""A tensor, a NumPy array or nested lists of numbers, [..., m, n]."""
Factors = tuple[Tensor, Tensor]
"""`left` [..., m, r] and `right` [..., n, r], which stand for `left @ right^T` [..., m, n]."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def as_tensor(given: Matrix) -> Tensor:
    """A tensor as it is, anything else as a new one; numbers in lists become float64.

    >>> as_tensor([[1, 2], [3, 4]])
    tensor([[1., 2.], [3., 4.]], dtype=torch.float64)
    """
    if isinstance(given, Tensor):
        return given
    if isinstance(given, list | tuple):
        return torch.tensor(given, dtype=torch.float64)
    return torch.from_numpy(np.array(given))


def checked(left: Matrix, right: Matrix, *, name: str = "") -> Factors:
    """Both factors without gradients, with the same leading sizes, on a device that has float64."""
    left, right = as_tensor(left).detach(), as_tensor(right).detach()
    what = name or "The matrix"
    for factor in (left, right):
        refuse_quantised(factor, what)
    if min(left.ndim, right.ndim) < 2 or left.shape[-1] != right.shape[-1] or left.device != right.device:
        raise RankriseError(
            f"{what} has factors {list(left.shape)} on {left.device} and {list(right.shape)} on "
            f"{right.device}: pass [..., m, r] and [..., n, r] on one device."
        )
    batch = left.shape[:-2] or right.shape[:-2]
    left, right = left.expand(*batch, *left.shape[-2:]), right.expand(*batch, *right.shape[-2:])
    if left.device.type == "mps":  # it has no float64
        return left.cpu(), right.cpu()
    return left, right


def refuse_quantised(weight: Tensor, what: str) -> None:
    """Refuse integers and floats of 8 bits: without their scales, such numbers are not the weights."""
    if weight.dtype not in FLOATS:
        raise RankriseError(
            f"{what} has dtype {weight.dtype}: it is quantised, so dequantise the model first."
        )


def refuse_non_finite(bad: Tensor, name: str, numbers: Sequence[int] | None = None) -> None:
    """Raise if any entry of `bad` [...] is set, with the layer's name and its first bad head, counted from 1.

    `numbers` are the heads' indices in the model, where `bad` is of some of them.
    """
    if bad.any():
        place = [int(index) for index in bad.nonzero()[0]]
        head = [(index if numbers is None else numbers[index]) + 1 for index in place]
        which = f", head {', '.join(map(str, head))} (counted from 1)," if head else ""
        raise RankriseError(
            f"{name or 'The matrix'}{which} holds nan or inf, which has no singular values: look for where "
            "training diverged, or leave this layer out."
        )


def divided(numerator: Tensor, denominator: Tensor) -> Tensor:
    """`numerator / denominator`, and 0 where the denominator is 0."""
    return numerator / torch.where(denominator == 0, torch.inf, denominator)
