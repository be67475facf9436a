"""The active factors of all products as one vector, and gradient flow on it.

For products `A_j = U_j V_j^T` the vector holds the columns `[u_i; v_i]` of every product, one column after
another. The flow `U' = -G V, V' = -G^T U` is `x' = F(x) = -dL/dx`, so its Jacobian is symmetric.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._loss import Loss

Factors = list[Tensor]
"""One (d1 + d2, k) matrix `W = [U; V]` per product."""


def balanced(product: Tensor, rank: int) -> Tensor:
    """The factors `[U; V]` (d1 + d2, rank) of a product with `U^T U = V^T V`, largest column first."""
    left, values, right = torch.linalg.svd(product, full_matrices=False)
    size = values[:rank].sqrt()
    return torch.cat([left[:, :rank] * size, right[:rank].T * size])


@dataclass(frozen=True, eq=False)
class Here:
    """A point x (n,) of the active factors with the loss, its flat gradient and the rate `x' = F(x)`."""

    x: Tensor
    value: Tensor
    gradient: Tensor
    rate: Tensor


@dataclass(frozen=True)
class FactorSpace:
    """Factors with `ranks` columns per product, as vectors (size,)."""

    loss: Loss
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of entries of all columns."""
        return sum(sum(shape) * rank for shape, rank in zip(self.loss.shapes, self.ranks, strict=True))

    def here(self, x: Tensor) -> Here:
        """Evaluate the loss and its gradient at x."""
        value, gradient = self.loss.value_and_gradient(self.products(x))
        return Here(x, value, gradient, self.pull(gradient, x))

    def pack(self, factors: Sequence[Tensor]) -> Tensor:
        """The vector (size,) of factors."""
        return torch.cat([columns.T.flatten() for columns in factors])

    def split(self, x: Tensor) -> Factors:
        """The factors in a vector, or in each of several (..., size)."""
        heights = [sum(shape) for shape in self.loss.shapes]
        parts = x.split([height * rank for height, rank in zip(heights, self.ranks, strict=True)], dim=-1)
        return [
            part.reshape(*x.shape[:-1], rank, height).mT
            for part, height, rank in zip(parts, heights, self.ranks, strict=True)
        ]

    def products(self, x: Tensor) -> Tensor:
        """The flat products `U V^T` at `x`."""
        factors = self.split(x)
        return self._product(factors, factors)

    def tangent(self, x: Tensor, direction: Tensor) -> Tensor:
        """The change `dU V^T + U dV^T` of the flat products, for directions (..., size)."""
        here, moved = self.split(x), self.split(direction)
        return self._product(moved, here) + self._product(here, moved)

    def _product(self, left: Factors, right: Factors) -> Tensor:
        """The flat `U V^T` with U from one and V from other factors, batched over leading axes."""
        parts = []
        for (rows, _), one, other in zip(self.loss.shapes, left, right, strict=True):
            parts.append((one[..., :rows, :] @ other[..., rows:, :].mT).flatten(-2))
        return torch.cat(parts, -1)

    def pull(self, gradient: Tensor, x: Tensor) -> Tensor:
        """`M x`: minus the flat `gradient` (..., of all products) applied to the factors of x."""
        parts = []
        flat = gradient.split([rows * columns for rows, columns in self.loss.shapes], dim=-1)
        for shape, part, columns in zip(self.loss.shapes, flat, self.split(x), strict=True):
            slope = part.reshape(*part.shape[:-1], *shape)
            up, down = columns[..., : shape[0], :], columns[..., shape[0] :, :]
            parts.append(-torch.cat([slope @ down, slope.mT @ up], -2).mT.flatten(-2))
        return torch.cat(parts, -1)

    def column_sizes(self, x: Tensor) -> Tensor:
        """The length of each column, (sum of ranks,)."""
        return torch.cat([columns.square().sum(-2).sqrt() for columns in self.split(x)], -1)
