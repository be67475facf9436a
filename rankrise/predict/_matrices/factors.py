"""The active factors of all products as one vector, and gradient flow on it.

For products `A_j = U_j V_j^T` the vector holds the columns `[u_i; v_i]` of every product, one column after
another. The flow `U' = -G V, V' = -G^T U` is `x' = F(x) = -dL/dx`, so its Jacobian is symmetric.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._matrices.loss import MatrixLoss

Factors = list[Tensor]
"""One (d1 + d2, k) matrix `W = [U; V]` per product."""


@dataclass(frozen=True)
class FactorSpace:
    """Factors with `ranks` columns per product, as vectors (size,)."""

    loss: MatrixLoss
    ranks: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of entries of all columns."""
        return sum(sum(shape) * rank for shape, rank in zip(self.loss.shapes, self.ranks, strict=True))

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
        return self.loss_product(self.split(x), self.split(x))

    def loss_product(self, left: Factors, right: Factors) -> Tensor:
        """The flat `U V^T` with U from one and V from other factors, batched over leading axes."""
        parts = []
        for (rows, _), one, other in zip(self.loss.shapes, left, right, strict=True):
            product = one[..., :rows, :] @ other[..., rows:, :].mT
            parts.append(product.flatten(-2))
        return torch.cat(parts, -1)

    def tangent(self, x: Tensor, direction: Tensor) -> Tensor:
        """The change `dU V^T + U dV^T` of the flat products, for directions (..., size)."""
        here, moved = self.split(x), self.split(direction)
        return self.loss_product(moved, here) + self.loss_product(here, moved)

    def pull(self, gradient: Tensor, x: Tensor) -> Tensor:
        """`M x`: minus the flat `gradient` (..., of all products) applied to the factors of x."""
        parts = []
        flat = gradient.split([rows * columns for rows, columns in self.loss.shapes], dim=-1)
        for shape, part, columns in zip(self.loss.shapes, flat, self.split(x), strict=True):
            slope = part.reshape(*part.shape[:-1], *shape)
            up, down = columns[..., : shape[0], :], columns[..., shape[0] :, :]
            moved = torch.cat([slope @ down, slope.mT @ up], -2)
            parts.append(-moved.mT.flatten(-2))
        return torch.cat(parts, -1)

    def column_sizes(self, x: Tensor) -> Tensor:
        """The length of each column, (sum of ranks,)."""
        return torch.cat([columns.square().sum(-2).sqrt() for columns in self.split(x)], -1)
