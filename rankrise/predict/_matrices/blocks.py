"""A loss seen block by block: where directions fall into blocks that nothing couples, each block is a product
of its own.

The flow never leaves such blocks, but rounding does, and what leaves may grow: a loss of the diagonal of A
has points of rest that are minima in each diagonal entry, and saddles among matrices of their rank. Seen
block by block they are minima. Blocks of one direction make the diagonal network.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._matrices.loss import MatrixLoss
from rankrise.predict._matrices.modes import Modes


@dataclass(frozen=True, eq=False)
class Block:
    """A block of a product: orthonormal `left` (d1, m) and `right` (d2, n) directions."""

    product: int
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class BlockLoss:
    """A loss of the products of all `blocks`; `observe` sees the flat gradient of the whole products."""

    whole: MatrixLoss
    blocks: tuple[Block, ...]
    observe: Callable[[Tensor], None]

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """The shape of each block."""
        return tuple((block.left.shape[1], block.right.shape[1]) for block in self.blocks)

    def join(self, parts: tuple[Tensor, ...]) -> Tensor:
        """The flat whole products of a matrix per block."""
        products = [self.whole.zero()[:0].new_zeros(shape) for shape in self.whole.shapes]
        for block, part in zip(self.blocks, parts, strict=True):
            products[block.product] = products[block.product] + block.left @ part @ block.right.T
        return torch.cat([product.flatten() for product in products])

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The matrix of each block within flat whole products."""
        products = self.whole.split(flat)
        return [block.left.T @ products[block.product] @ block.right for block in self.blocks]

    def __call__(self, *parts: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return self.whole.function(*self.whole.split(self.join(parts)))

    def value_and_gradient(self, *parts: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient per block."""
        value, gradient = self.whole.value_and_gradient(self.join(parts))
        self.observe(gradient)
        return value, self.cut(gradient)

    def hessian_product(self, *parts: Tensor) -> Callable[..., list[Tensor]]:
        """The Hessian as a function from one direction to one result per block."""
        product = self.whole.hessian_product(self.join(parts))
        return lambda *directions: self.cut(product(self.join(directions)))


def blocks_in(modes: Modes, product: int, places: list[list[int]]) -> list[Block]:
    """The blocks of a product that hold these places of its frame; one without a pair has nothing to say."""
    rows, columns = len(modes.left), len(modes.right)
    found = []
    for block in places:
        left = modes.left[:, [place for place in block if place < rows]]
        right = modes.right[:, [place for place in block if place < columns]]
        if left.shape[1] and right.shape[1]:
            found.append(Block(product, left, right))
    return found
