"""Numbers that users pass: tensors, NumPy arrays or lists."""

from collections.abc import Sequence
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from rankrise.foundations.errors import RankriseError

Array = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]
"""Accepted wherever a tensor is."""


def as_tensor(name: str, value: Array | float, device: torch.device | str | None = None) -> Tensor:
    """Return a tensor unchanged, and copy any other array of numbers into one.

    >>> as_tensor("u0", [1, 0.5]), as_tensor("u0", numpy.float32(2))
    (tensor([1.0000, 0.5000], dtype=torch.float64), tensor(2.))
    """
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(numpy.array(value))
    except (TypeError, ValueError) as error:
        raise RankriseError(f"{name} must be a tensor, a NumPy array or a list of numbers.") from error
    return tensor if device is None else tensor.to(device)
