"""What the networks share: random data, objectives with their derivatives, and checks.

- `"squared"`: half the squared error, summed over tokens and dimensions. Zero at the teacher.
- `"cross-entropy"`: the target of a token is a distribution over the dimensions, the softmax of the teacher's
  output. The teacher is a minimiser, and the loss there is the entropy of the targets.
- `"hard-cross-entropy"`: the target is the teacher's most likely dimension. Where the network separates the
  data there is no finite minimiser: the loss has an exponential tail, and a stage need not converge, a
  limitation that the paper names.

Every loss is averaged over the samples, the first axis.
"""

from collections.abc import Sequence
from typing import Any, get_args

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array, as_tensor
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective


def generator(seed: int) -> torch.Generator:
    """A source of random numbers on the CPU, so that a seed means the same on every device."""
    return torch.Generator().manual_seed(seed)


def gaussian(source: torch.Generator, *shape: int) -> Tensor:
    """Standard Gaussian numbers in float64."""
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


def loss_and_slope(outputs: Tensor, targets: Tensor, objective: Objective, dim: int) -> tuple[Tensor, Tensor]:
    """The loss summed over the samples, and its derivative in the outputs, which it overwrites.

    `dim` is the axis of the dimensions.
    """
    if objective == "squared":
        slope = outputs.sub_(targets)
        return torch.dot(slope.flatten(), slope.flatten()) / 2, slope
    log_likelihood = outputs.log_softmax(dim)
    loss = -torch.dot(log_likelihood.flatten(), targets.flatten())
    return loss, log_likelihood.exp_().sub_(targets)


def check_sizes(**sizes: int) -> None:
    """Refuse a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise RankriseError(f"{name} is {size}: pass a whole number of 1 or more.")


def check_choice(name: str, choice: str, choices: Sequence[str]) -> None:
    """Refuse a word that is not one of the choices."""
    if choice not in choices:
        raise RankriseError(f"{name} is {choice!r}: pass one of {', '.join(choices)}.")


def take_data(network: Any, axes: str) -> None:
    """Check a network's objective, and keep its `inputs` and `targets` as float64 tensors.

    There is one target per token and dimension of inputs (samples, tokens, d), one per sample of (samples,
    p).
    """
    check_choice("objective", network.objective, get_args(Objective))
    for name in ("inputs", "targets"):
        object.__setattr__(network, name, as_tensor(name, getattr(network, name)).double())
    inputs, targets = network.inputs, network.targets
    expected = inputs.shape if inputs.ndim == 3 else inputs.shape[:1]
    if inputs.ndim != len(axes.split(",")) or targets.shape != expected:
        raise RankriseError(
            f"inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)}: pass ({axes}) and "
            "targets to match."
        )


class ByAutograd:
    """A network of `a` whose gradient autograd finds."""

    def value_and_gradient(self, a: Array) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (p,) at `a`."""
        with torch.enable_grad():
            point = as_tensor("a", a).double().detach().requires_grad_()
            loss = self(point)  # type: ignore[operator]
            (gradient,) = torch.autograd.grad(loss, point)
        return loss.detach(), gradient


def checked_point(a: Array, size: int) -> Tensor:
    """An `a` (size,) as a tensor; another shape might broadcast unseen."""
    a = a if isinstance(a, Tensor) else as_tensor("a", a).double()
    if a.shape != (size,):
        raise RankriseError(f"a has shape {tuple(a.shape)}: pass ({size},), one number per coordinate.")
    return a
