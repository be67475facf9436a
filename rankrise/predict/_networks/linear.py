"""The diagonal linear network, where the theory reduces to earlier work's and much can be solved by hand."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.foundations.arrays import Array
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._networks.checks import check_coordinate, check_sizes, checked_point, take_data
from rankrise.predict._networks.objectives import Objective, check_objective
from rankrise.predict._networks.randomness import gaussian, generator


@dataclass(frozen=True, eq=False)
class DiagonalLinear:
    """The loss of `h(x) = sum_i a_i x_i` on its data, as a function of `a`.

    `inputs` (samples, p) and `targets` (samples,) are float64. The squared error needs only the second
    moments of the inputs and the best fit, so its cost does not grow with the samples. Cross-entropy is the
    logistic loss: h is the log-odds of yes, a target its probability. Where the columns of the inputs are
    `orthogonal` the second moments are diagonal, and the squared error is a sum over coordinates.
    """

    inputs: Tensor
    targets: Tensor
    objective: Objective = "squared"
    orthogonal: bool = False
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        check_objective(self.objective)
        take_data(self, "samples, p")

    @property
    def size(self) -> int:
        """The number of coordinates, p."""
        return self.inputs.shape[-1]

    def __call__(self, a: Array) -> Tensor:
        """The loss at `a` (p,), twice differentiable by autograd."""
        a = checked_point(a, self.size)
        if self.objective == "squared":
            offset = a - self._best
            return torch.dot(offset, self._apply_moments(offset)) / 2 + self._least
        outputs = self.inputs @ a
        return (torch.nn.functional.softplus(outputs) - self.targets * outputs).mean()

    @torch.no_grad()
    def value_and_gradient(self, a: Array) -> tuple[Tensor, Tensor]:
        """The loss and its gradient (p,) at `a`."""
        a = checked_point(a, self.size)
        if self.objective == "squared":
            offset = a - self._best
            gradient = self._apply_moments(offset)
            return torch.dot(offset, gradient) / 2 + self._least, gradient
        return self(a), self.inputs.T @ ((self.inputs @ a).sigmoid() - self.targets) / len(self.inputs)

    @torch.no_grad()
    def hessian(self, a: Array) -> Tensor:
        """The exact Hessian (p, p) at `a`."""
        a = checked_point(a, self.size)
        if self.objective == "squared":
            return torch.diag(self._moments) if self.orthogonal else self._moments.clone()
        likelihood = (self.inputs @ a).sigmoid()
        return self.inputs.T @ (self.inputs * (likelihood * (1 - likelihood)).unsqueeze(1)) / len(self.inputs)

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "input 7"."""
        check_coordinate(coordinate, self.size)
        return f"input {coordinate}"

    def _apply_moments(self, a: Tensor) -> Tensor:
        return self._moments * a if self.orthogonal else self._moments @ a

    @cached_property
    def _moments(self) -> Tensor:
        """Second moments of the inputs: (p, p), or (p,) where they are orthogonal."""
        if self.orthogonal:
            return self.inputs.square().mean(0)
        return self.inputs.T @ self.inputs / len(self.inputs)

    @cached_property
    def _best(self) -> Tensor:
        """The least-squares fit (p,), the one of least norm where there are several."""
        if self.orthogonal:
            return (self.inputs.T @ self.targets / len(self.inputs)) / self._moments
        fit = torch.linalg.lstsq(self.inputs.cpu(), self.targets.cpu().unsqueeze(1), driver="gelsd")
        return fit.solution.squeeze(1).to(self.inputs)

    @cached_property
    def _least(self) -> Tensor:
        """The loss of the least-squares fit."""
        return (self.inputs @ self._best - self.targets).square().mean() / 2


@typed
def diagonal_linear(
    dimension: int = 50,
    samples: int = 1000,
    seed: int = 0,
    orthogonal: bool = False,
    objective: Objective = "squared",
    device: str | torch.device = "cpu",
) -> DiagonalLinear:
    """A diagonal linear network on Gaussian inputs, with targets from a teacher whose u and v are Gaussian.

    With `orthogonal`, the columns of the inputs are made orthogonal, of mean square 1: the squared error is
    then `|a - teacher|^2 / 2`, and each coordinate of a flow solves a scalar logistic equation.

    >>> network = diagonal_linear(dimension=3, samples=20, orthogonal=True)
    >>> network.hessian(network.teacher).diagonal().round(decimals=9).tolist()
    [1.0, 1.0, 1.0]
    """
    check_sizes(dimension=dimension, samples=samples)
    check_objective(objective)
    if orthogonal and samples < dimension:
        raise RankriseError(
            f"samples={samples} cannot carry {dimension} orthogonal inputs: pass {dimension} samples or more."
        )
    source = generator(seed)
    inputs = gaussian(source, samples, dimension)
    if orthogonal:
        inputs = torch.linalg.qr(inputs).Q * samples**0.5
    teacher = gaussian(source, dimension) * gaussian(source, dimension)
    outputs = inputs @ teacher
    if objective == "cross-entropy":
        outputs = outputs.sigmoid()
    elif objective == "hard-cross-entropy":
        outputs = (outputs > 0).double()
    return DiagonalLinear(inputs.to(device), outputs.to(device), objective, orthogonal, teacher.to(device))
