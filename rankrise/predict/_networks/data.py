"""Random data, and objectives: losses that are summed over tokens and dimensions, averaged over samples.

- `"squared"`: half the squared error.
- `"cross-entropy"`: the target of a token is the softmax of the teacher's output.
- `"hard-cross-entropy"`: the target is the teacher's most likely dimension. Where the network separates the
  data there is no finite minimiser: the loss has an exponential tail, and a stage need not converge.
"""

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective


def gaussian(source: torch.Generator, *shape: int) -> Tensor:
    """Standard Gaussian numbers in float64, drawn on the CPU: a seed means the same on every device."""
    if min(shape) < 1:
        raise RankriseError(
            f"dimension, tokens, samples, layers and heads must be at least 1: data would have shape {shape}."
        )
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def targets_of(outputs: Tensor, objective: Objective) -> Tensor:
    """The targets that a teacher with these outputs (..., dimension) sets."""
    match objective:
        case "squared":
            return outputs
        case "cross-entropy":
            return outputs.softmax(-1)
        case "hard-cross-entropy":
            return torch.nn.functional.one_hot(outputs.argmax(-1), outputs.shape[-1]).to(outputs)
    raise RankriseError(f"objective is {objective!r}: pass squared, cross-entropy or hard-cross-entropy.")


def mean_loss(outputs: Tensor, targets: Tensor, objective: Objective) -> Tensor:
    """The loss of outputs (samples, tokens, dimension), differentiable by autograd."""
    if objective == "squared":
        return (outputs - targets).square().sum() / (2 * len(outputs))
    return -(targets * outputs.log_softmax(-1)).sum() / len(outputs)


def centred(values: Tensor, weights: Tensor) -> Tensor:
    """Values (..., tokens) less their mean under the attention weights."""
    return values - (weights * values).sum(-1, keepdim=True)
