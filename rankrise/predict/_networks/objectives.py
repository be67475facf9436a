"""How outputs are compared with targets: squared error and cross-entropy, with their derivatives.

- `"squared"`: half the squared error, summed over tokens and dimensions. Zero at the teacher.
- `"cross-entropy"`: the target of a token is a distribution over the dimensions, the softmax of the teacher's
  output. The teacher is a minimiser, and the loss there is the entropy of the targets.
- `"hard-cross-entropy"`: the target is the teacher's most likely dimension. Where the network separates the
  data there is no finite minimiser: the loss has an exponential tail, and a stage of Algorithm 1 need not
  converge, a limitation that the paper names.

Every loss is averaged over the samples, the first axis.
"""

from typing import get_args

import torch
from torch import Tensor

from rankrise.foundations.objective import Objective
from rankrise.predict._networks.checks import check_choice


def check_objective(objective: str) -> None:
    """Refuse a name that is not an `Objective`."""
    check_choice("objective", objective, get_args(Objective))


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


def loss_and_slope(outputs: Tensor, targets: Tensor, objective: Objective, dim: int) -> tuple[Tensor, Tensor]:
    """The loss summed over the samples, and its derivative in the outputs, whose memory it takes.

    `dim` is the axis of the dimensions.
    """
    if objective == "squared":
        slope = outputs.sub_(targets)
        return torch.dot(slope.flatten(), slope.flatten()) / 2, slope
    log_likelihood = outputs.log_softmax(dim)
    loss = -torch.dot(log_likelihood.flatten(), targets.flatten())
    return loss, log_likelihood.exp_().sub_(targets)
