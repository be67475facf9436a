"""Numbers from a user: a tensor, a NumPy array or a list, as the tensor that computes."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import shown

Array = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]
"""What is taken wherever a tensor is."""


def as_tensor(name: str, value: Array | float, device: torch.device | str | None = None) -> Tensor:
    """A tensor as it is; anything else that NumPy makes an array of numbers of, copied.

    >>> as_tensor("u0", [1, 0.5]), as_tensor("u0", numpy.float32(2))
    (tensor([1.0000, 0.5000], dtype=torch.float64), tensor(2.))
    >>> as_tensor("u0", "large")
    Traceback (most recent call last):
    rankrise.RankriseError: u0 is 'large': pass a tensor, a NumPy array or a list of numbers.
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(numpy.array(value))
    except (TypeError, ValueError) as error:
        raise RankriseError(
            f"{name} is {shown(value)}: pass a tensor, a NumPy array or a list of numbers."
        ) from error
    return tensor if device is None else tensor.to(device)
