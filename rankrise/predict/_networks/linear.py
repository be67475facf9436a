"""Linear networks with two layers, full or diagonal, and matrix sensing: much can be solved by hand."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.predict._networks.data import gaussian


@dataclass(frozen=True, eq=False)
class LinearNetwork:
    """`L(A) = 1/(2n) sum |x^T A - y|^2` of the end-to-end matrix `A = U V^T` (d1, d2).

    `inputs` x are (n, d1) and `targets` y (n, d2), in float64. With vectors `right` w (n, d2) it is matrix
    sensing, `1/(2n) sum (x^T A w - y)^2` with `targets` (n, 1): the simplest loss that mixes directions.
    """

    inputs: Tensor
    targets: Tensor
    right: Tensor | None = None
    teacher: Tensor | None = None

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of the one product."""
        other = self.targets if self.right is None else self.right
        return ((self.inputs.shape[1], other.shape[1]),)

    def label(self, product: int) -> str:
        """The name of the product."""
        return "A"

    def __call__(self, product: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return self._missed(product).square().sum() / (2 * len(self.inputs))

    @torch.no_grad()
    def value_and_gradient(self, product: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient (d1, d2)."""
        missed = self._missed(product)
        pulled = missed if self.right is None else missed * self.right
        return missed.square().sum() / (2 * len(missed)), [self.inputs.T @ pulled / len(missed)]

    def hessian(self, product: Tensor) -> Tensor:
        """The Hessian (d1 d2, d1 d2), which is the same everywhere."""
        return self._hessian

    @cached_property
    def _hessian(self) -> Tensor:
        (shape,) = self.shapes
        hessian: Tensor = torch.func.hessian(self)(self.inputs.new_zeros(shape))
        return hessian.flatten(0, 1).flatten(1)

    def _missed(self, product: Tensor) -> Tensor:
        outputs = self.inputs @ product
        if self.right is not None:
            outputs = (outputs * self.right).sum(1, keepdim=True)
        return outputs - self.targets


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
            return self.inputs.T @ self.inputs / len(self.inputs)
        likelihood = (self.inputs @ a).sigmoid()
        return self.inputs.T @ (self.inputs * (likelihood * (1 - likelihood)).unsqueeze(1)) / len(self.inputs)


def linear_network(
    inputs: int = 4,
    outputs: int | None = None,
    samples: int = 200,
    seed: int = 0,
    diagonal: bool = False,
    objective: Objective = "squared",
) -> LinearNetwork | DiagonalLinear:
    """A two-layer linear network on Gaussian inputs, with targets from a random teacher of the same form.

    With full matrices, inputs have standard deviations from 0.5 to 1.5, and the teacher is a Gaussian matrix.
    With `diagonal` weights there is one output, inputs are standard Gaussian, and so are the teacher's u and
    v; only these take an `objective`.

    >>> network = linear_network(3, 2, samples=30)
    >>> network.shapes, float(network(network.teacher))
    (((3, 2),), 0.0)
    """
    if not diagonal and objective != "squared":
        raise RankriseError(f"objective is {objective}: pass diagonal=True, full matrices take squared only.")
    source = torch.Generator().manual_seed(seed)
    x = gaussian(source, samples, inputs)
    if not diagonal:
        x = x * torch.linspace(0.5, 1.5, inputs, dtype=torch.float64)
        matrix = gaussian(source, inputs, outputs or inputs)
        return LinearNetwork(x, (x @ matrix), teacher=matrix)
    teacher = gaussian(source, inputs) * gaussian(source, inputs)
    y = x @ teacher
    targets = {"squared": y, "cross-entropy": y.sigmoid(), "hard-cross-entropy": (y > 0).double()}
    return DiagonalLinear(x, targets[objective], objective, teacher)


def matrix_sensing(
    rows: int = 4,
    columns: int | None = None,
    samples: int = 200,
    rank: int | None = None,
    seed: int = 0,
) -> LinearNetwork:
    """Gaussian measurements of a Gaussian matrix of some rank, by default the full one.

    >>> network = matrix_sensing(3, 4, samples=30)
    >>> network.shapes, float(network(network.teacher))
    (((3, 4),), 0.0)
    """
    columns = columns or rows
    rank = rank or min(rows, columns)
    source = torch.Generator().manual_seed(seed)
    left, right = gaussian(source, samples, rows), gaussian(source, samples, columns)
    teacher = gaussian(source, rows, rank) @ gaussian(source, rank, columns) / rank**0.5
    targets = ((left @ teacher) * right).sum(1, keepdim=True)
    return LinearNetwork(left, targets, right, teacher)
