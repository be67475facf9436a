"""Matrix sensing: find a matrix from bilinear measurements of it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.predict._networks.data import check_sizes, gaussian, generator


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
    check_sizes(rows=rows, columns=columns, samples=samples, rank=rank)
    if rank > min(rows, columns):
        raise RankriseError(f"rank is {rank}: a matrix {rows} x {columns} has at most {min(rows, columns)}.")
    source = generator(seed)
    left, right = gaussian(source, samples, rows), gaussian(source, samples, columns)
    teacher = gaussian(source, rows, rank) @ gaussian(source, rank, columns) / rank**0.5
    targets = torch.einsum("ni,ij,nj->n", left, teacher, right)
    return MatrixSensing(left.to(device), right.to(device), targets.to(device), teacher.to(device))
