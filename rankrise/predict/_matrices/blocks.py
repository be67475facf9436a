"""A loss as a function of one matrix per block, where the directions of products fall into blocks.

Where nothing couples two blocks, each is landed as a product of its own. The flow never leaves such blocks,
but rounding does, and what leaves may grow: a loss of the diagonal of A has points of rest that are minima in
each diagonal entry, and saddles among matrices of their rank.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._loss import Loss, Shape, flattened
from rankrise.predict._matrices.active import balanced
from rankrise.predict._matrices.landing import Rest, land
from rankrise.predict._matrices.modes import Modes, Places


@dataclass(frozen=True, eq=False)
class Block:
    """A block of a product: orthonormal `left` (d1, m) and `right` (d2, n) directions."""

    product: int
    left: Tensor
    right: Tensor


def blocks_in(modes: Modes, product: int, places: Places) -> list[Block]:
    """The blocks of a product that hold these places of its frame; one without a pair learns nothing."""
    found = []
    for block in places:
        left = modes.left[:, [place for place in block if place < len(modes.left)]]
        right = modes.right[:, [place for place in block if place < len(modes.right)]]
        if left.shape[1] and right.shape[1]:
            found.append(Block(product, left, right))
    return found


@dataclass(frozen=True, eq=False)
class BlockLoss:
    """The loss of a matrix per block; `observe` sees the flat gradient of whole products."""

    whole: Loss
    blocks: Sequence[Block]
    observe: Callable[[Tensor], None]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each block."""
        return tuple((block.left.shape[1], block.right.shape[1]) for block in self.blocks)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The flat whole products of a matrix per block."""
        products = self.whole.split(self.whole.zero())
        for block, part in zip(self.blocks, parts, strict=True):
            products[block.product] = products[block.product] + block.left @ part @ block.right.T
        return flattened(products)

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The matrix of each block within flat whole products."""
        products = self.whole.split(flat)
        return [block.left.T @ products[block.product] @ block.right for block in self.blocks]

    def __call__(self, *parts: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return self.whole(self.join(parts))

    def value_and_gradient(self, *parts: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient per block."""
        value, gradient = self.whole.value_and_gradient(self.join(parts))
        self.observe(gradient)
        return value, self.cut(gradient)

    def hessian_product(self, *parts: Tensor) -> Callable[..., list[Tensor]]:
        """The Hessian as a function from one direction to one result per block."""
        product = self.whole.hessian_product(self.join(parts))
        return lambda *directions: self.cut(product(self.join(directions)))

    def land(self, point: Tensor, product: int, seed: Tensor, pace: float) -> Rest | None:
        """Where the flow comes to rest from a `point` (size,) with a column `seed` more in a product."""
        factors, rows = [], self.whole.shapes[product][0]
        for block, matrix in zip(self.blocks, self.cut(point), strict=True):
            rank = int((torch.linalg.svdvals(matrix) > 1e-9 * float(point.norm())).sum())
            columns = balanced(matrix, rank)
            own = torch.cat([block.left.T @ seed[:rows], block.right.T @ seed[rows:]])
            if block.product == product and float(own.norm()) > 0.5 * float(seed.norm()):
                columns = torch.cat([columns, own], 1)
            factors.append(columns)
        cut = Loss(self, self.shapes, False, self.whole.device)
        landed = land(cut, factors, pace)
        if landed is None:
            return None
        products = self.join(cut.split(landed.products))
        value, gradient = self.whole.value_and_gradient(products)
        ranks = [0] * len(self.whole.shapes)
        for block, columns in zip(self.blocks, landed.factors, strict=True):
            ranks[block.product] += columns.shape[1]
        factors = [balanced(a, rank) for a, rank in zip(self.whole.split(products), ranks, strict=True)]
        dropped = tuple(self.blocks[number].product for number in landed.dropped)
        return Rest(factors, products, gradient, float(value), dropped)
