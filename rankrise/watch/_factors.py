"""A matrix, or two thin factors of one, `left @ right^T`: what is accepted as such, and what is not.

No head's d x d product is ever formed: W_K W_Q^T has the factors (W_K, W_Q).
"""

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
Blocks = tuple[Tensor, ...]
"""Column blocks of one factor: one, or two of equal size."""
FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""The types of weights. In fewer bits they are quantised: without their scales, numbers that mean nothing."""


def as_tensor(given: Matrix) -> Tensor:
    """A tensor as it is, anything else as a new one; numbers in lists become float64.

    >>> as_tensor([[1, 2], [3, 4]])
    tensor([[1., 2.], [3., 4.]], dtype=torch.float64)
    """
    if isinstance(given, Tensor):
        return given
    of_tensors = isinstance(given, (list, tuple)) and any(isinstance(one, Tensor) for one in given)
    try:
        array = np.asarray(None if of_tensors else given)
        if not isinstance(given, np.ndarray) and array.dtype.kind in "iu":
            array = array.astype(float)
        return torch.from_numpy(np.array(array, array.dtype.newbyteorder("="), order="C"))
    except (TypeError, ValueError):
        raise RankriseError(
            f"{type(given).__name__} was passed as a matrix: pass a tensor, a NumPy array or nested lists of "
            "numbers; of two factors, each by itself or as a tuple of two."
        ) from None


def checked(left: Matrix, right: Matrix, name: str = "") -> Factors:
    """The two factors without gradients, on a device that has float64, or an error that says what is
    wrong."""
    left, right = as_tensor(left), as_tensor(right)
    for side, factor in (("left", left), ("right", right)):
        if factor.dtype not in FLOATS or factor.ndim < 2 or factor.numel() == 0 or factor.is_meta:
            raise RankriseError(
                f"{_where(name)}the {side} factor is {shape_of(factor)} of {factor.dtype}: pass a "
                "floating-point tensor [..., d, r] of 16 bits or more that holds numbers."
            )
    batches = {left.shape[:-2], right.shape[:-2]} - {torch.Size()}
    if left.shape[-1] != right.shape[-1] or left.device != right.device or len(batches) > 1:
        raise RankriseError(
            f"{_where(name)}the factors are {shape_of(left)} and {shape_of(right)}: pass [..., m, r] and "
            "[..., n, r] with the same leading sizes and the same r, on one device."
        )
    batch = batches.pop() if batches else ()
    left, right = (factor.detach().expand(*batch, *factor.shape[-2:]) for factor in (left, right))
    if left.device.type == "mps":  # it has no float64
        left, right = left.cpu(), right.cpu()
    return left, right


def refuse_quantised(weight: Tensor, what: str) -> None:
    """Refuse a weight of another type than `FLOATS`."""
    if weight.dtype not in FLOATS:
        raise RankriseError(
            f"{what} has dtype {weight.dtype}: it is quantised, so dequantise the model first."
        )


def refuse_non_finite(bad: Tensor, name: str, numbers: Sequence[int] | None = None) -> None:
    """Raise if any entry of `bad` [...] is set: the error names the layer and the first such head, counted
    from 1. `numbers` are the indices in the model of the heads in `bad`, where they are some of them."""
    if bad.any():
        place = [int(index) for index in bad.nonzero()[0]]
        head = [(index if numbers is None else numbers[index]) + 1 for index in place]
        which = f", head {head[0] if len(head) == 1 else head} (counted from 1)," if head else ""
        raise RankriseError(
            f"{name or 'The matrix'}{which} holds nan or inf, which has no singular values: look for where "
            "training diverged, or leave this layer out."
        )


def shape_of(factor: Tensor) -> str:
    """For error messages."""
    return f"{list(factor.shape)} on {factor.device}"


def _where(name: str) -> str:
    return f"{name}: " if name else ""
