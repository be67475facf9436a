"""One plateau of full matrices, and the transition from it to the next."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._matrices.blocks import BlockLoss, blocks_in
from rankrise.predict._matrices.landing import Rest, balanced, land
from rankrise.predict._matrices.loss import MatrixLoss
from rankrise.predict._matrices.modes import Coupling, Modes, blocks_of, carry, modes_at

_SEED_SIZE = 1e-3
_PROBE = 0.3

Places = list[list[int]]
"""The blocks of a product, each a list of places in the frame of its modes."""


@dataclass
class Plateau:
    """Where the algorithm stands: the point of rest, and the modes of every product there.

    `one_block` takes all directions of a product to be coupled, whatever is measured; `separate` says whether
    directions were ever found to fall into blocks.
    """

    loss: MatrixLoss
    rest: Rest
    modes: list[Modes]
    one_block: bool
    separate: bool = False

    def move_on(self, product: int, mode: int) -> tuple[bool, float] | None:
        """Let a mode become active and follow the flow to the next point of rest.

        Gives whether the rule covers what happened and the weakest link of the transition, or None where
        there is no point of rest.
        """
        couplings = [Coupling(modes) for modes in self.modes]
        self._probe(couplings, product, mode)
        # Where blocks are not kept apart, rounding couples them in the end: ask before.
        probed = [blocks_of(coupling.strength) for coupling in couplings]
        if self.one_block:
            left = [len(modes.rates) - (number == product) for number, modes in enumerate(self.modes)]
            self.separate |= any(
                many > 1 and len(found) > 1 for many, (found, _) in zip(left, probed, strict=True)
            )
        while True:
            blocks = [self._blocks(coupling) for coupling in couplings]
            rest = self._land(couplings, blocks, product, mode)
            if rest is None:
                return None
            if [self._blocks(coupling) for coupling in couplings] == blocks:
                break
        new = modes_of(self.loss, rest)
        clear, weakest = True, math.inf
        for number, coupling in enumerate(couplings):
            if len(new[number].rates) > 1:
                found, link = probed[number] if self.one_block else blocks_of(coupling.strength)
                weakest = min(weakest, link)
                self.separate |= len(found) > 1 and not self.one_block
            winner = mode if number == product else None
            new[number], said = carry(self.modes[number], new[number], winner, blocks[number])
            clear &= said
        self.rest, self.modes = rest, new
        return clear, weakest

    def _blocks(self, coupling: Coupling) -> Places:
        found, _ = blocks_of(coupling.strength)
        return [list(range(len(coupling.strength)))] if self.one_block else found

    def _probe(self, couplings: list[Coupling], product: int, mode: int) -> None:
        """Look for couplings a little way along the new direction, before the flow is followed there."""
        products = [part.clone() for part in self.loss.split(self.rest.products)]
        scale = max(1.0, *(float(part.norm()) for part in products))
        seed, rows = self.modes[product].seed(mode, 1.0)[:, 0], self.loss.shapes[product][0]
        products[product] += _PROBE * scale * torch.outer(seed[:rows], seed[rows:])
        _observe(couplings, self.loss, self.rest.gradient)
        _, gradient = self.loss.value_and_gradient(torch.cat([part.flatten() for part in products]))
        _observe(couplings, self.loss, gradient)

    def _land(self, couplings: list[Coupling], blocks: list[Places], product: int, mode: int) -> Rest | None:
        """The next point of rest: of whole products, or block by block where some fall apart."""
        pace = float(self.modes[product].rates[mode])
        seed = self.modes[product].seed(mode, _SEED_SIZE)
        if all(len(places) == 1 for places in blocks):
            factors = list(self.rest.factors)
            factors[product] = torch.cat([factors[product], seed], 1)
            return land(self.loss, factors, pace, lambda flat: _observe(couplings, self.loss, flat))
        parts = [
            part
            for number, (modes, places) in enumerate(zip(self.modes, blocks, strict=True))
            for part in blocks_in(modes, number, places)
        ]
        cut = BlockLoss(self.loss, tuple(parts), lambda flat: _observe(couplings, self.loss, flat))
        factors = []
        rows = self.loss.shapes[product][0]
        for block, matrix in zip(cut.blocks, cut.cut(self.rest.products), strict=True):
            rank = int((torch.linalg.svdvals(matrix) > 1e-9 * float(self.rest.products.norm())).sum())
            columns = balanced(matrix, rank) if rank else matrix.new_zeros(sum(matrix.shape), 0)
            own = torch.cat([block.left.T @ seed[:rows], block.right.T @ seed[rows:]])
            if block.product == product and float(own.norm()) > 0.5 * float(seed.norm()):
                columns = torch.cat([columns, own], 1)
            factors.append(columns)
        landed = land(MatrixLoss(cut, cut.shapes, self.loss.device), factors, pace)
        return None if landed is None else self._whole(cut, landed)

    def _whole(self, cut: BlockLoss, landed: Rest) -> Rest:
        """A point of rest of the blocks, as one of the products."""
        products = cut.join(tuple(MatrixLoss(cut, cut.shapes).split(landed.products)))
        value, gradient = self.loss.value_and_gradient(products)
        ranks = [0] * len(self.loss.shapes)
        for block, columns in zip(cut.blocks, landed.factors, strict=True):
            ranks[block.product] += columns.shape[1]
        factors = [balanced(a, rank) for a, rank in zip(self.loss.split(products), ranks, strict=True)]
        dropped = tuple(cut.blocks[number].product for number in landed.dropped)
        return Rest(factors, products, gradient, float(value), dropped)


def plateau_at_zero(loss: MatrixLoss, one_block: bool) -> Plateau:
    """The plateau on which a vanishing initialisation starts."""
    zero = loss.zero()
    value, gradient = loss.value_and_gradient(zero)
    factors = [zero.new_zeros(sum(shape), 0) for shape in loss.shapes]
    rest = Rest(factors, zero, gradient, float(value), ())
    return Plateau(loss, rest, modes_of(loss, rest), one_block)


def modes_of(loss: MatrixLoss, rest: Rest) -> list[Modes]:
    """The modes of every product at a point of rest."""
    products, gradients = loss.split(rest.products), loss.split(rest.gradient)
    return [
        modes_at(product, gradient, columns.shape[1])
        for product, gradient, columns in zip(products, gradients, rest.factors, strict=True)
    ]


def _observe(couplings: list[Coupling], loss: MatrixLoss, flat: Tensor) -> None:
    for coupling, gradient in zip(couplings, loss.split(flat), strict=True):
        coupling.observe(gradient)
