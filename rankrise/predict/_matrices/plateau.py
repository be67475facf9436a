"""A plateau of full matrices, and the transition to the next.

Where directions fall into blocks that nothing couples, each block is landed as a product of its own. The flow
never leaves such blocks, but rounding does, and what leaves may grow: a loss of the diagonal of A has points
of rest that are minima in each diagonal entry, and saddles among matrices of their rank.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.predict._loss import Loss, Shape, flattened
from rankrise.predict._matrices.landing import Rest, balanced, land
from rankrise.predict._matrices.modes import Coupling, Modes, Places, blocks_of, carry, modes_at
from rankrise.predict._stages import Mixing
from rankrise.predict._transition import FLAT, Transition

_SEED_SIZE = 1e-3
_PROBE = 0.3


class MatrixPlateau:
    """The point of rest, and the modes of every product there."""

    def __init__(self, loss: Loss, columns: Sequence[int]) -> None:
        zero = loss.zero()
        value, gradient = loss.value_and_gradient(zero)
        factors = [zero.new_zeros(sum(shape), 0) for shape in loss.shapes]
        self.loss, self._columns = loss, columns
        self._rest = Rest(factors, zero, gradient, float(value), ())
        self._modes = _modes_of(loss, self._rest)
        largest = max(float(modes.rates[0]) for modes in self._modes)
        self.flat = largest <= FLAT * max(1.0, abs(self.value))
        self._least = FLAT * largest
        self._separate = False

    @property
    def value(self) -> float:
        """The loss."""
        return self._rest.value

    @property
    def point(self) -> Tensor:
        """The flat products."""
        return self._rest.products

    @property
    def mixing(self) -> Mixing:
        """Whether directions were ever found to fall into blocks, along which exponents are "tracked"."""
        return "tracked" if self._separate else "ordered"

    def waits(self) -> Tensor:
        """The rescaled time until each mode of each product becomes active, if its rate stays."""
        waits = [
            modes.waiting(self._least) if modes.rank < most else torch.full_like(modes.rates, math.inf)
            for modes, most in zip(self._modes, self._columns, strict=True)
        ]
        return torch.cat(waits)

    def product_of(self, winner: int) -> int:
        """The product that an entry of `waits` belongs to."""
        return self._place(winner).product

    def wait(self, time: float) -> None:
        """Let a rescaled time pass."""
        self._modes = [modes.wait(time) for modes in self._modes]

    def move_on(self, winner: int) -> Transition | None:
        """Let a mode become active and follow the flow to its point of rest; None if it has none."""
        winner_at = self._place(winner)
        couplings = [Coupling(modes) for modes in self._modes]
        self._probe(couplings, winner_at)
        while True:
            blocks = [blocks_of(coupling.strength)[0] for coupling in couplings]
            rest = self._land(couplings, blocks, winner_at)
            if rest is None:
                return None
            if [blocks_of(coupling.strength)[0] for coupling in couplings] == blocks:
                break
        new = _modes_of(self.loss, rest)
        clear, weakest = True, math.inf
        for number, coupling in enumerate(couplings):
            if len(new[number].rates) > 1:
                found, link = blocks_of(coupling.strength)
                weakest = min(weakest, link)
                self._separate |= len(found) > 1
            mode = winner_at.mode if number == winner_at.product else None
            new[number], covered = carry(self._modes[number], new[number], mode, blocks[number])
            clear &= covered
        self._rest, self._modes = rest, new
        return Transition(
            sign=1,
            rank=new[winner_at.product].rank,
            left=rest.dropped,
            clear=clear,
            rates=tuple(modes.rates for modes in new),
            exponents=tuple(modes.exponents for modes in new),
            mixing=weakest,
        )

    def _place(self, winner: int) -> "_Place":
        for product, modes in enumerate(self._modes):
            if winner < len(modes.rates):
                return _Place(product, winner)
            winner -= len(modes.rates)
        raise IndexError(winner)

    def _probe(self, couplings: list[Coupling], winner: "_Place") -> None:
        """Look for couplings a little way along the new direction, before the flow is followed there."""
        products = [part.clone() for part in self.loss.split(self.point)]
        scale = max(1.0, *(float(part.norm()) for part in products))
        rows = self.loss.shapes[winner.product][0]
        seed = self._modes[winner.product].seed(winner.mode, 1.0)[:, 0]
        products[winner.product] += _PROBE * scale * torch.outer(seed[:rows], seed[rows:])
        self._observe(couplings, self._rest.gradient)
        self._observe(couplings, self.loss.value_and_gradient(flattened(products))[1])

    def _observe(self, couplings: list[Coupling], flat: Tensor) -> None:
        for coupling, gradient in zip(couplings, self.loss.split(flat), strict=True):
            coupling.observe(gradient)

    def _land(self, couplings: list[Coupling], blocks: list[Places], winner: "_Place") -> Rest | None:
        """The next point of rest: of whole products, or block by block where some fall apart."""
        pace = float(self._modes[winner.product].rates[winner.mode])
        seed = self._modes[winner.product].seed(winner.mode, _SEED_SIZE)
        if all(len(places) == 1 for places in blocks):
            factors = list(self._rest.factors)
            factors[winner.product] = torch.cat([factors[winner.product], seed], 1)
            return land(self.loss, factors, pace, lambda flat: self._observe(couplings, flat))

        parts = [
            block
            for number, (modes, places) in enumerate(zip(self._modes, blocks, strict=True))
            for block in _blocks_in(modes, number, places)
        ]
        cut = BlockLoss(self.loss, tuple(parts), lambda flat: self._observe(couplings, flat))
        factors = []
        rows = self.loss.shapes[winner.product][0]
        for block, matrix in zip(cut.blocks, cut.cut(self.point), strict=True):
            rank = int((torch.linalg.svdvals(matrix) > 1e-9 * float(self.point.norm())).sum())
            columns = balanced(matrix, rank)
            own = torch.cat([block.left.T @ seed[:rows], block.right.T @ seed[rows:]])
            if block.product == winner.product and float(own.norm()) > 0.5 * float(seed.norm()):
                columns = torch.cat([columns, own], 1)
            factors.append(columns)
        landed = land(Loss(cut, cut.shapes, False, self.loss.device), factors, pace)
        return None if landed is None else self._whole(cut, landed)

    def _whole(self, cut: "BlockLoss", landed: Rest) -> Rest:
        """A point of rest of the blocks, as one of the products."""
        products = cut.join(tuple(Loss(cut, cut.shapes, False).split(landed.products)))
        value, gradient = self.loss.value_and_gradient(products)
        ranks = [0] * len(self.loss.shapes)
        for block, columns in zip(cut.blocks, landed.factors, strict=True):
            ranks[block.product] += columns.shape[1]
        factors = [balanced(a, rank) for a, rank in zip(self.loss.split(products), ranks, strict=True)]
        dropped = tuple(cut.blocks[number].product for number in landed.dropped)
        return Rest(factors, products, gradient, float(value), dropped)


class _Place(NamedTuple):
    """A mode of a product."""

    product: int
    mode: int


def _modes_of(loss: Loss, rest: Rest) -> list[Modes]:
    """The modes of every product at a point of rest."""
    products, gradients = loss.split(rest.products), loss.split(rest.gradient)
    return [
        modes_at(product, gradient, columns.shape[1])
        for product, gradient, columns in zip(products, gradients, rest.factors, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Block:
    """A block of a product: orthonormal `left` (d1, m) and `right` (d2, n) directions."""

    product: int
    left: Tensor
    right: Tensor


def _blocks_in(modes: Modes, product: int, places: Places) -> list[Block]:
    """The blocks of a product that hold these places of its frame; one without a pair learns nothing."""
    rows, columns = len(modes.left), len(modes.right)
    found = []
    for block in places:
        left = modes.left[:, [place for place in block if place < rows]]
        right = modes.right[:, [place for place in block if place < columns]]
        if left.shape[1] and right.shape[1]:
            found.append(Block(product, left, right))
    return found


@dataclass(frozen=True, eq=False)
class BlockLoss:
    """The loss as a function of one matrix per block; `observe` sees the flat gradient of whole products."""

    whole: Loss
    blocks: tuple[Block, ...]
    observe: Callable[[Tensor], None]

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shape of each block."""
        return tuple((block.left.shape[1], block.right.shape[1]) for block in self.blocks)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The flat whole products of a matrix per block."""
        products = [part.clone() for part in self.whole.split(self.whole.zero())]
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
