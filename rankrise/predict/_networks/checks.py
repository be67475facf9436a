"""Bad input to a network, refused with a sentence."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array, as_tensor
from rankrise.foundations.errors import RankriseError


def check_sizes(**sizes: int) -> None:
    """Refuse a size that is not a positive whole number."""
    for name, size in sizes.items():
        if not isinstance(size, int) or isinstance(size, bool) or size <= 0:
            raise RankriseError(f"{name}={size!r} is not a size: pass a whole number of 1 or more.")


def check_choice(name: str, choice: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if choice not in choices:
        raise RankriseError(f"{name}={choice!r} is not known: pass one of {', '.join(map(repr, choices))}.")


def take_data(network: Any, shape: str) -> None:
    """Keep a network's `inputs` and `targets` as tensors; refuses what is not finite and float64.

    `shape` names the axes of the inputs. There is one target per token and dimension of (samples, tokens, d),
    one per sample of (samples, p).
    """
    for name in ("inputs", "targets"):
        tensor = as_tensor(name, getattr(network, name))
        if tensor.dtype != torch.float64 or not tensor.isfinite().all():
            raise RankriseError(f"{name} are {tensor.dtype} or not finite: pass finite float64 numbers.")
        object.__setattr__(network, name, tensor)
    inputs, targets = network.inputs, network.targets
    if inputs.ndim != len(shape.split(",")):
        raise RankriseError(f"inputs have shape {tuple(inputs.shape)}: pass ({shape}).")
    expected = inputs.shape if inputs.ndim == 3 else inputs.shape[:1]
    if targets.shape != expected:
        raise RankriseError(
            f"targets have shape {tuple(targets.shape)}: pass {tuple(expected)}, to match the inputs."
        )


def checked_point(a: Array, size: int) -> Tensor:
    """An `a` of this network as a tensor; refuses any other shape, which might broadcast unseen."""
    a = a if isinstance(a, Tensor) else as_tensor("a", a).double()
    if a.shape != (size,):
        raise RankriseError(f"a has shape {tuple(a.shape)}: pass ({size},), one number per coordinate.")
    return a


def check_coordinate(coordinate: int, size: int) -> None:
    """Refuse a coordinate outside `a`."""
    if not 0 <= coordinate < size:
        raise RankriseError(f"coordinate={coordinate} does not exist: pass one from 0 to {size - 1}.")
