"""Random data, objectives and checks that the networks share.

- `"squared"`: half the squared error, summed over tokens and dimensions. Zero at the teacher.
- `"cross-entropy"`: the target of a token is a distribution over the dimensions, the softmax of the teacher's
  output. The teacher is a minimiser, and the loss there is the entropy of the targets.
- `"hard-cross-entropy"`: the target is the teacher's most likely dimension. Where the network separates the
  data there is no finite minimiser: the loss has an exponential tail, and a stage need not converge, a
  limitation that the paper names.

Every loss is averaged over the samples, the first axis.
"""

import math
from collections.abc import Sequence
from typing import get_args

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective

_MOST_NUMBERS = 100_000_000


def gaussian(source: torch.Generator, *shape: int) -> Tensor:
    """Standard Gaussian numbers in float64, drawn on the CPU: a seed means the same on every device."""
    if math.prod(shape) > _MOST_NUMBERS:
        size = " x ".join(map(str, shape))
        raise RankriseError(f"{size} random numbers take {8e-9 * math.prod(shape):.2g} GB: pass fewer.")
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def targets_of(outputs: Tensor, objective: Objective) -> Tensor:
    """The targets that a teacher with these outputs (..., dimension) sets."""
    if objective == "squared":
        return outputs
    if objective == "cross-entropy":
        return outputs.softmax(-1)
    return torch.nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]).to(outputs)


def mean_loss(outputs: Tensor, targets: Tensor, objective: Objective) -> Tensor:
    """The loss of outputs (samples, tokens, dimension), differentiable by autograd."""
    if objective == "squared":
        return (outputs - targets).square().sum() / (2 * len(outputs))
    return -(targets * outputs.log_softmax(-1)).sum() / len(outputs)


def centred(values: Tensor, weights: Tensor) -> Tensor:
    """Values (..., tokens) less their mean under the attention weights."""
    return values - (weights * values).sum(-1, keepdim=True)


def check_sizes(**sizes: int) -> None:
    """Refuse a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise RankriseError(f"{name} is {size}: pass a whole number of 1 or more.")


def check_choice(name: str, choice: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if choice not in choices:
        raise RankriseError(f"{name} is {choice!r}: pass one of {', '.join(choices)}.")


def check_data(inputs: Tensor, targets: Tensor, objective: str) -> None:
    """Refuse all but a target per entry of inputs (samples, tokens, d), or per sample of (samples, p)."""
    check_choice("objective", objective, get_args(Objective))
    expected = inputs.shape if inputs.ndim == 3 else inputs.shape[:1]
    if inputs.ndim not in (2, 3) or targets.shape != expected:
        shapes = tuple(inputs.shape), tuple(targets.shape)
        raise RankriseError(f"inputs have shape {shapes[0]} and targets {shapes[1]}: pass targets to match.")
