"""The second moment of one side of a matrix, and the root of it that weighs a change."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError

DAMPING = 1e-3
"""What is added to every eigenvalue, as a share of their mean."""


@dataclass(frozen=True, eq=False)
class Moment:
    """`E[x x^T]` of the vectors x at one side of a matrix, or what of it fits into memory.

    `blocks` are its diagonal blocks, in order: one for the whole matrix, [d, d]; several where a side is
    long, each [b, b]; or one vector [d], the diagonal alone, where it is as long as a vocabulary.

    >>> Moment((torch.eye(2), 3 * torch.eye(1))).size
    3
    """

    blocks: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        return sum(len(block) for block in self.blocks)

    @property
    def whole(self) -> tuple[Tensor, ...]:
        """The blocks that are not a diagonal alone."""
        return tuple(block for block in self.blocks if block.ndim == 2)

    def part(self, start: int, stop: int) -> "Moment":
        """That of the coordinates from `start` to `stop` alone."""
        blocks, first = [], 0
        for block in self.blocks:
            inside = slice(max(start - first, 0), max(stop - first, 0))
            cut = block[inside] if block.ndim == 1 else block[inside, inside]
            blocks += [cut] if len(cut) else []
            first += len(block)
        return Moment(tuple(blocks))

    @property
    def mean(self) -> float:
        """The mean eigenvalue."""
        trace = sum(
            float((block if block.ndim == 1 else block.diagonal()).double().sum()) for block in self.blocks
        )
        return trace / self.size

    def root(self, damping: float = DAMPING) -> "Root":
        """Lower triangular L with `L L^T` the damped moment; next to nothing where it is 0."""
        mean = self.mean
        if not 0 <= mean < float("inf"):
            raise RankriseError(
                f"A second moment has the mean eigenvalue {mean}: measure moments on finite losses."
            )
        if mean == 0:
            return Root(tuple(torch.full((len(block),), 1e-12) for block in self.blocks))
        return Root(tuple(_root(block.double(), damping * mean) for block in self.blocks))


@dataclass(frozen=True, eq=False)
class Root:
    """A block diagonal L, float32; each block [b, b] lower triangular, or [b] for a diagonal one."""

    blocks: tuple[Tensor, ...]

    def apply(self, matrix: Tensor) -> Tensor:
        """`L^T @ matrix`."""
        return torch.cat(
            [
                block[:, None] * rows if block.ndim == 1 else block.mT @ rows
                for block, rows in zip(self._like(matrix), self._split(matrix), strict=True)
            ]
        )

    def undo(self, matrix: Tensor) -> Tensor:
        """`L^-T @ matrix`."""
        return torch.cat(
            [
                rows / block[:, None]
                if block.ndim == 1
                else torch.linalg.solve_triangular(block.mT, rows, upper=True)
                for block, rows in zip(self._like(matrix), self._split(matrix), strict=True)
            ]
        )

    @property
    def square(self) -> float:
        """The square of the Frobenius norm: the trace of the moment."""
        return sum(float(block.double().square().sum()) for block in self.blocks)

    @property
    def norm(self) -> float:
        """The largest singular value."""
        return max(
            float(block.abs().max()) if block.ndim == 1 else _norm(block.double()) for block in self.blocks
        )

    def _split(self, matrix: Tensor) -> Sequence[Tensor]:
        return matrix.split([len(block) for block in self.blocks])

    def _like(self, matrix: Tensor) -> list[Tensor]:
        return [block.to(matrix) for block in self.blocks]


def _root(block: Tensor, added: float) -> Tensor:
    if block.ndim == 1:
        return (block + added).sqrt().float()
    damped = (block + block.mT) / 2 + added * torch.eye(len(block), dtype=block.dtype, device=block.device)
    root, failed = torch.linalg.cholesky_ex(damped)
    if failed:
        raise RankriseError(
            "A second moment has negative eigenvalues: it was not measured by use.moments, or is damaged; "
            "measure it again."
        )
    return root.float()


def _norm(block: Tensor, turns: int = 50) -> float:
    vector = block.mT @ torch.ones(len(block), 1, dtype=block.dtype, device=block.device)
    for _ in range(turns):
        vector = block.mT @ (block @ (vector / torch.linalg.vector_norm(vector)))
    return float(torch.linalg.vector_norm(vector)) ** 0.5
