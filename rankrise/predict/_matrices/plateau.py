"""A plateau of full matrices, and the transition to the next."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from rankrise.predict._loss import Loss, flattened
from rankrise.predict._matrices.blocks import BlockLoss, blocks_in
from rankrise.predict._matrices.landing import Rest, land
from rankrise.predict._matrices.modes import Coupling, Modes, Places, blocks_of, carry, modes_at
from rankrise.predict._stages import FLAT, Mixing

_SEED_SIZE = 1e-3
_PROBE = 0.3


class MatrixPlateau:
    """The point of rest, and the modes of every product there.

    `clear` says whether the theory covers what happened so far.
    """

    clear = True

    def __init__(self, loss: Loss, columns: Sequence[int]) -> None:
        zero = loss.zero()
        value, gradient = loss.value_and_gradient(zero)
        factors = [zero.new_zeros(sum(shape), 0) for shape in loss.shapes]
        self.loss, self._columns = loss, columns
        self._rest = Rest(factors, zero, gradient, float(value))
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
        return self._place(winner)[0]

    def wait(self, time: float) -> None:
        """Let a rescaled time pass."""
        self._modes = [modes.wait(time) for modes in self._modes]

    def move_on(self, winner: int) -> dict[str, Any] | None:
        """Let a mode become active and follow the flow to its rest: a `Stage`'s fields, or None if it has
        none.
        """
        product, mode = self._place(winner)
        couplings = [Coupling(modes) for modes in self._modes]

        def observe(flat: Tensor) -> None:
            for coupling, gradient in zip(couplings, self.loss.split(flat), strict=True):
                coupling.observe(gradient)

        def blocks_now() -> list[Places]:
            return [blocks_of(coupling.strength)[0] for coupling in couplings]

        # Look for couplings a little way along the new direction, before the flow is followed there.
        observe(self._rest.gradient)
        observe(self.loss.value_and_gradient(self._probe(product, mode))[1])
        blocks, rest = list[Places](), self._rest
        while (coupled := blocks_now()) != blocks:
            blocks = coupled
            landed = self._land(blocks, product, mode, observe)
            if landed is None:
                return None
            rest = landed
        new = _modes_of(self.loss, rest)
        weakest = math.inf
        for number, coupling in enumerate(couplings):
            if len(new[number].rates) > 1:
                found, link = blocks_of(coupling.strength)
                weakest = min(weakest, link)
                self._separate |= len(found) > 1
            active = mode if number == product else None
            new[number], covered = carry(self._modes[number], new[number], active, blocks[number])
            self.clear &= covered
        self._rest, self._modes = rest, new
        return {
            "sign": 1,
            "rank": new[product].rank,
            "left": rest.dropped,
            "rates": tuple(modes.rates for modes in new),
            "exponents": tuple(modes.exponents for modes in new),
            "mixing": weakest,
        }

    def _place(self, winner: int) -> tuple[int, int]:
        """The product and the mode that an entry of `waits` belongs to."""
        places = [
            (number, mode) for number, modes in enumerate(self._modes) for mode in range(len(modes.rates))
        ]
        return places[winner]

    def _probe(self, product: int, mode: int) -> Tensor:
        """The flat products a little way along a mode."""
        products = [part.clone() for part in self.loss.split(self.point)]
        scale = max(1.0, *(float(part.norm()) for part in products))
        rows = self.loss.shapes[product][0]
        seed = self._modes[product].seed(mode, 1.0)[:, 0]
        products[product] += _PROBE * scale * torch.outer(seed[:rows], seed[rows:])
        return flattened(products)

    def _land(
        self, blocks: list[Places], product: int, mode: int, observe: Callable[[Tensor], None]
    ) -> Rest | None:
        """The next point of rest: of whole products, or block by block where some fall apart."""
        pace = float(self._modes[product].rates[mode])
        seed = self._modes[product].seed(mode, _SEED_SIZE)
        if all(len(places) == 1 for places in blocks):
            factors = list(self._rest.factors)
            factors[product] = torch.cat([factors[product], seed], 1)
            return land(self.loss, factors, pace, observe)
        parts = [
            block
            for number, (modes, places) in enumerate(zip(self._modes, blocks, strict=True))
            for block in blocks_in(modes, number, places)
        ]
        return BlockLoss(self.loss, parts, observe).land(self.point, product, seed, pace)


def _modes_of(loss: Loss, rest: Rest) -> list[Modes]:
    """The modes of every product at a point of rest."""
    products, gradients = loss.split(rest.products), loss.split(rest.gradient)
    return [
        modes_at(product, gradient, columns.shape[1])
        for product, gradient, columns in zip(products, gradients, rest.factors, strict=True)
    ]
