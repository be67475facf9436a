"""Linear networks with two layers: full matrices, or diagonal weights, where much can be solved by hand."""

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import (
    ByAutograd,
    check_choice,
    check_sizes,
    checked_point,
    gaussian,
    generator,
    take_data,
)


@dataclass(frozen=True, eq=False)
class LinearNetwork:
    """`L(A) = 1/(2n) sum |A^T x - y|^2` of the end-to-end matrix `A = U V^T` (d1, d2).

    `inputs` x are (n, d1), `targets` y (n, d2), in float64. With white inputs the gradients of a flow
    commute, and nothing mixes (Saxe et al. 2014); with others they do not.
    """

    inputs: Tensor
    targets: Tensor
    teacher: Tensor | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of the one product."""
        return ((self.inputs.shape[1], self.targets.shape[1]),)

    def label(self, product: int) -> str:
        """The name of a product: "A"."""
        return "A"

    def __call__(self, product: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return (self.inputs @ product - self.targets).square().sum() / (2 * len(self.inputs))

    @torch.no_grad()
    def value_and_gradient(self, product: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d1, d2)."""
        missed = self.inputs @ product - self.targets
        return missed.square().sum() / (2 * len(missed)), [self.inputs.T @ missed / len(missed)]

    def hessian(self, product: Tensor) -> Tensor:
        """The Hessian (d1 d2, d1 d2), which is the same everywhere."""
        return self._hessian

    @cached_property
    def _hessian(self) -> Tensor:
        moments = self.inputs.T @ self.inputs / len(self.inputs)
        unit = torch.eye(self.targets.shape[1], dtype=moments.dtype, device=moments.device)
        return torch.kron(moments, unit)


@dataclass(frozen=True, eq=False)
class DiagonalLinear(ByAutograd):
    """The loss of `h(x) = sum_i a_i x_i` on its data, as a function of `a`.

    `inputs` (samples, p) and `targets` (samples,) are float64. The squared error is halved. Cross-entropy is
    the logistic loss: h is the log-odds of yes, and a target its probability.
    """

    inputs: Tensor
    targets: Tensor
    objective: Objective = "squared"
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        take_data(self, "samples, p")

    @property
    def size(self) -> int:
        """The number of coordinates, p."""
        return self.inputs.shape[-1]

    def __call__(self, a: Array) -> Tensor:
        """The loss at `a` (p,), twice differentiable by autograd."""
        outputs = self.inputs @ checked_point(a, self.size)
        if self.objective == "squared":
            return (outputs - self.targets).square().mean() / 2
        return (torch.nn.functional.softplus(outputs) - self.targets * outputs).mean()

    def hessian(self, a: Array) -> Tensor:
        """The exact Hessian (p, p) at `a`."""
        if self.objective == "squared":
            return self._moments
        likelihood = (self.inputs @ checked_point(a, self.size)).sigmoid()
        return self.inputs.T @ (self.inputs * (likelihood * (1 - likelihood)).unsqueeze(1)) / len(self.inputs)

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "input 7"."""
        return f"input {coordinate}"

    @cached_property
    def _moments(self) -> Tensor:
        return self.inputs.T @ self.inputs / len(self.inputs)


def linear_network(
    inputs: int = 4,
    outputs: int | None = None,
    samples: int = 200,
    seed: int = 0,
    white: bool = False,
    diagonal: bool = False,
    objective: Objective = "squared",
    device: str | torch.device = "cpu",
) -> LinearNetwork | DiagonalLinear:
    """A two-layer linear network on Gaussian inputs, with targets from a random teacher of the same form.

    With full matrices, inputs have standard deviations from 0.5 to 1.5, and the teacher is a Gaussian matrix.
    With `diagonal` weights there is one output, inputs are standard Gaussian, and so are the teacher's u and
    v; only these take an `objective`. If `white`, the columns of the inputs are orthogonal, with mean square
    1: then nothing mixes, and each coordinate of a diagonal flow solves a scalar logistic equation.

    >>> network = linear_network(3, 2, samples=30)
    >>> network.shapes, float(network(network.teacher))
    (((3, 2),), 0.0)
    >>> network = linear_network(3, samples=20, white=True, diagonal=True)
    >>> network.size, network.hessian(network.teacher).diagonal().round(decimals=9).tolist()
    (3, [1.0, 1.0, 1.0])
    """
    outputs = 1 if diagonal else inputs if outputs is None else outputs
    check_sizes(inputs=inputs, outputs=outputs, samples=samples)
    check_choice("objective", objective, get_args(Objective) if diagonal else ("squared",))
    if white and samples < inputs:
        raise RankriseError(f"samples is {samples}: {inputs} orthogonal inputs take as many samples.")
    source = generator(seed)
    x = gaussian(source, samples, inputs)
    if white:
        x = torch.linalg.qr(x).Q * samples**0.5
    elif not diagonal:
        x = x * torch.linspace(0.5, 1.5, inputs, dtype=torch.float64)
    if not diagonal:
        matrix = gaussian(source, inputs, outputs)
        return LinearNetwork(x.to(device), (x @ matrix).to(device), matrix.to(device))
    teacher = gaussian(source, inputs) * gaussian(source, inputs)
    y = x @ teacher
    if objective == "cross-entropy":
        y = y.sigmoid()
    elif objective == "hard-cross-entropy":
        y = (y > 0).double()
    return DiagonalLinear(x.to(device), y.to(device), objective, teacher.to(device))
