"""Linear networks with two layers, full or diagonal, and matrix sensing: much can be solved by hand."""

from dataclasses import dataclass
from functools import cached_property
from typing import get_args

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.predict._networks import data


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
class DiagonalLinear:
    """The loss of `h(x) = sum_i a_i x_i` on its data, as a function of `a`.

    `inputs` (samples, p) and `targets` (samples,) are float64. The squared error is halved. Cross-entropy is
    the logistic loss: h is the log-odds of yes, and a target its probability.
    """

    inputs: Tensor
    targets: Tensor
    objective: Objective = "squared"
    teacher: Tensor | None = None

    def __post_init__(self) -> None:
        data.check_data(self.inputs, self.targets, self.objective)

    @property
    def size(self) -> int:
        """The number of coordinates, p."""
        return self.inputs.shape[-1]

    def label(self, coordinate: int) -> str:
        """The name of a coordinate, such as "input 7"."""
        return f"input {coordinate}"

    def __call__(self, a: Tensor) -> Tensor:
        """The loss at `a` (p,), twice differentiable by autograd."""
        outputs = self.inputs @ a
        if self.objective == "squared":
            return (outputs - self.targets).square().mean() / 2
        return (torch.nn.functional.softplus(outputs) - self.targets * outputs).mean()

    def hessian(self, a: Tensor) -> Tensor:
        """The exact Hessian (p, p) at `a`."""
        if self.objective == "squared":
            return self._moments
        likelihood = (self.inputs @ a).sigmoid()
        return self.inputs.T @ (self.inputs * (likelihood * (1 - likelihood)).unsqueeze(1)) / len(self.inputs)

    @cached_property
    def _moments(self) -> Tensor:
        return self.inputs.T @ self.inputs / len(self.inputs)


@dataclass(frozen=True, eq=False)
class MatrixSensing:
    """`L(A) = 1/(2n) sum (x^T A y - z)^2` for one product A (d1, d2), the simplest loss that mixes.

    `left` x are (n, d1), `right` y (n, d2), `targets` z (n,), in float64.
    """

    left: Tensor
    right: Tensor
    targets: Tensor
    teacher: Tensor | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of the one product."""
        return ((self.left.shape[1], self.right.shape[1]),)

    def label(self, product: int) -> str:
        """The name of a product: "A"."""
        return "A"

    def __call__(self, product: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        measured = torch.einsum("ni,ij,nj->n", self.left, product, self.right)
        return (measured - self.targets).square().mean() / 2

    @torch.no_grad()
    def value_and_gradient(self, product: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d1, d2)."""
        missed = ((self.left @ product) * self.right).sum(1) - self.targets
        gradient = self.left.T @ (missed[:, None] * self.right) / len(missed)
        return missed.square().mean() / 2, [gradient]

    def hessian(self, product: Tensor) -> Tensor:
        """The Hessian (d1 d2, d1 d2), which is the same everywhere."""
        return self._hessian

    @cached_property
    def _hessian(self) -> Tensor:
        measurements = (self.left[:, :, None] * self.right[:, None]).flatten(1)
        return measurements.T @ measurements / len(measurements)


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
    data.check_sizes(inputs=inputs, outputs=outputs, samples=samples)
    data.check_choice("objective", objective, get_args(Objective) if diagonal else ("squared",))
    if white and samples < inputs:
        raise RankriseError(f"samples is {samples}: {inputs} orthogonal inputs take as many samples.")
    source = torch.Generator().manual_seed(seed)
    x = data.gaussian(source, samples, inputs)
    if white:
        x = torch.linalg.qr(x).Q * samples**0.5
    elif not diagonal:
        x = x * torch.linspace(0.5, 1.5, inputs, dtype=torch.float64)
    if not diagonal:
        matrix = data.gaussian(source, inputs, outputs)
        return LinearNetwork(x.to(device), (x @ matrix).to(device), matrix.to(device))
    teacher = data.gaussian(source, inputs) * data.gaussian(source, inputs)
    y = x @ teacher
    if objective == "cross-entropy":
        y = y.sigmoid()
    elif objective == "hard-cross-entropy":
        y = (y > 0).double()
    return DiagonalLinear(x.to(device), y.to(device), objective, teacher.to(device))


def matrix_sensing(
    rows: int = 4,
    columns: int | None = None,
    samples: int = 200,
    rank: int | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> MatrixSensing:
    """Gaussian measurements of a Gaussian matrix of some rank, by default the full one.

    >>> network = matrix_sensing(3, 4, samples=30)
    >>> network.shapes, float(network(network.teacher))
    (((3, 4),), 0.0)
    """
    columns = rows if columns is None else columns
    rank = min(rows, columns) if rank is None else rank
    data.check_sizes(rows=rows, columns=columns, samples=samples, rank=rank)
    if rank > min(rows, columns):
        raise RankriseError(f"rank is {rank}: a matrix {rows} x {columns} has at most {min(rows, columns)}.")
    source = torch.Generator().manual_seed(seed)
    left, right = data.gaussian(source, samples, rows), data.gaussian(source, samples, columns)
    teacher = data.gaussian(source, rows, rank) @ data.gaussian(source, rank, columns) / rank**0.5
    targets = torch.einsum("ni,ij,nj->n", left, teacher, right)
    return MatrixSensing(left.to(device), right.to(device), targets.to(device), teacher.to(device))
