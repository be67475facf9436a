"""A plateau of full matrices, the inactive directions there, and the transition to the next plateau.

On a plateau `-G` is constant. Reduced to the complements of what is active it is `sum s_i p_i q_i^T`, and the
weights along `(p_i; q_i)` grow like `alpha^(1 - b_i)` with `b_i' = s_i` in rescaled time: `s_i` is a rate and
`b_i` an exponent. A mode whose exponent reaches 1 becomes active.

A transition turns the directions. What becomes of the exponents depends on which directions it couples:

- In a block of coupled directions the *ordered* exponents are kept: the largest goes to the new direction
  with the largest rate, and so on, as Lyapunov exponents of products of generic matrices add.
- Exponents count along `+p q^T`. A block with as many left as right directions has one sign left over (the
  identity component of SO(d, d) has Weyl chambers of type D), and the last exponent takes it.
- A direction that couples to no other is a block of its own: it keeps its exponent, with the sign that it now
  has. This is the diagonal network.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from rankrise.predict._loss import Loss, flattened
from rankrise.predict._matrices.active import (
    Block,
    Factors,
    FactorSpace,
    Here,
    Linearised,
    balanced,
    next_length,
)

_SEED_SIZE = 1e-3
_PROBE = 0.3
_NO_COUPLING = 1e-8  # a coupling below this fraction of the gradient is rounding
_ROUGH = 0.03  # the error of a step, as a fraction of each column: the path has to stay in its basin, no more
_ALMOST_STILL = 0.1
_STILLER = 0.2
"""Newton's method is tried when the pace has fallen to this part, and again after it fell as much more."""
_VANISHING = 1e-5
_CLOSE = 0.3
_FLAT = 1e-9
_STILL = 1e-12
_ROUNDING = 1e-8  # after so small a move of Newton's method the next one, its square, is rounding
_MOST_STEPS = 150
_MOST_NEWTON_STEPS = 30
_FOR_EVER = 1e100

Mixing = Literal["ordered", "tracked"]
Places = list[list[int]]
"""Blocks of directions, each a list of places in a frame."""


@dataclass(frozen=True, eq=False)
class Rest:
    """A point of rest: the rank of each product, the flat products, their gradient and the loss.

    `dropped` are the products that lost a direction on the way, one entry per direction.
    """

    ranks: tuple[int, ...]
    products: Tensor
    gradient: Tensor
    value: float
    dropped: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class Modes:
    """The directions of a product (d1, d2) of rank k on a plateau, orthogonal, `left` (d1, d1) and `right`
    (d2, d2): k active ones, the modes in order of their rates (n,), and what the longer side has left over.
    """

    left: Tensor
    right: Tensor
    rank: int
    rates: Tensor

    def block(self, places: list[int]) -> tuple[Tensor, Tensor]:
        """The left and right directions at some places, as far as each side has them."""
        left, right = ([place for place in places if place < len(side)] for side in (self.left, self.right))
        return self.left[:, left], self.right[:, right]


def modes_at(loss: Loss, rest: Rest) -> list[Modes]:
    """The modes of every product at a point of rest."""
    found = []
    products, gradients = loss.split(rest.products), loss.split(rest.gradient)
    for product, gradient, rank in zip(products, gradients, rest.ranks, strict=True):
        left, _, right = torch.linalg.svd(product)
        right = right.T
        inner_left, rates, inner_right = torch.linalg.svd(-left[:, rank:].T @ gradient @ right[:, rank:])
        left = torch.cat([left[:, :rank], left[:, rank:] @ inner_left], 1)
        right = torch.cat([right[:, :rank], right[:, rank:] @ inner_right.T], 1)
        found.append(Modes(left, right, rank, rates))
    return found


def blocks_of(largest: Tensor) -> tuple[Places, float]:
    """The blocks of coupled directions, and the weakest link that holds all of them together.

    `largest` (m, m), m = max(d1, d2), has the largest entries of the gradient in the frame of the directions.
    """
    reach = torch.maximum(largest, largest.T) / (float(largest.max()) or 1.0)
    reach.fill_diagonal_(math.inf)
    for through in range(len(reach)):
        # The weakest link of the best path between each two directions, by way of those seen so far.
        reach = torch.maximum(reach, torch.minimum(reach[:, through, None], reach[through]))
    blocks = {tuple(row.nonzero()[:, 0].tolist()) for row in reach > _NO_COUPLING}
    return [list(block) for block in sorted(blocks)], float(reach.min())


def carry(
    old: Modes, new: Modes, exponents: Tensor, winner: int | None, blocks: Places
) -> tuple[Tensor, bool]:
    """The exponents of the new modes after old mode `winner` became active, and whether the theory covers it:
    not if a block drops a direction beside other inactive ones, or one moves into another block.
    """
    shares, pair_count = [], old.rank + len(old.rates)
    for block in blocks:
        left, right = old.block(block)
        share = (left.T @ new.left).square().sum(0)[:pair_count]
        shares.append(share + (right.T @ new.right).square().sum(0)[:pair_count])
    home = torch.stack(shares).argmax(0).tolist()  # the block in which each new pair of directions lies
    carried, clear = torch.zeros_like(new.rates), True
    for number, block in enumerate(blocks):
        pairs = [place for place in block if place < pair_count]
        before = [place for place in pairs if place >= old.rank and place - old.rank != winner]
        now = [place for place in range(pair_count) if home[place] == number]
        after = [place for place in now if place >= new.rank]
        dropped = len(after) - len(before)
        if dropped < 0 or len(now) != len(pairs):
            return carried, False
        if not after:
            continue
        held = [float(exponents[place - old.rank]) for place in before] + [1.0] * dropped
        for place, size in zip(after, sorted(map(abs, held), reverse=True), strict=True):
            carried[place - new.rank] = size
        square = len(block) == len(pairs)
        if square:
            # The sign left over: of the exponents, and of the turn from the old frame to the new one.
            turns = (old.left[:, pairs].T @ new.left[:, now], old.right[:, pairs].T @ new.right[:, now])
            signs = [*held, *(float(torch.linalg.det(turn)) for turn in turns)]
            carried[after[-1] - new.rank] *= -1.0 if sum(sign < 0 for sign in signs) % 2 else 1.0
        clear = clear and not (dropped and (len(after) > 1 or not square))
    return carried, clear


class MatrixPlateau:
    """A point of rest, `point` (size,) with its loss `value`, and the `exponents` and rates, `forces`, of the
    modes of every product, `owners`.

    `clear` says whether the theory covers what happened so far, and `mixing` is "tracked" once directions
    were found to fall into blocks.
    """

    clear = True
    mixing: Mixing = "ordered"

    def __init__(self, loss: Loss, columns: int | None) -> None:
        self._loss, self._most = loss, [columns or min(shape) for shape in loss.shapes]
        value, gradient = loss.value_and_gradient(loss.zero())
        rest = Rest((0,) * len(loss.shapes), loss.zero(), gradient, float(value))
        modes = modes_at(loss, rest)
        self._stay(rest, modes, [torch.zeros_like(one.rates) for one in modes])
        self.flat = float(self.forces.max()) <= _FLAT * max(1.0, abs(self.value))

    def _stay(self, rest: Rest, modes: list[Modes], exponents: list[Tensor]) -> None:
        self._rest, self._modes, self.point, self.value = rest, modes, rest.products, rest.value
        self.exponents = torch.cat(exponents)
        # A product all of whose columns are active waits for ever.
        pairs = zip(modes, self._most, strict=True)
        self.forces = torch.cat([one.rates if one.rank < most else one.rates * 0 for one, most in pairs])
        self.owners = [product for product, one in enumerate(modes) for _ in one.rates]

    def move_on(self, winner: int) -> dict[str, Any] | None:
        """Let a mode become active and follow the flow to its rest: a `Stage`'s fields, or None."""
        product = self.owners[winner]
        mode = winner - self.owners.index(product)
        modes, shapes, old = self._modes, self._loss.shapes, self._rest
        largest = [self.point.new_zeros(max(shape), max(shape)) for shape in shapes]

        def observe(flat: Tensor) -> None:
            for one, seen, gradient in zip(modes, largest, self._loss.split(flat), strict=True):
                entries = (one.left.T @ gradient @ one.right).abs()
                part = seen[: entries.shape[0], : entries.shape[1]]
                torch.maximum(part, entries, out=part)

        # Look for couplings a little way along the new direction, before the flow is followed there.
        observe(old.gradient)
        place = modes[product].rank + mode
        up, down = modes[product].left[:, place], modes[product].right[:, place]
        probe = [part.clone() for part in self._loss.split(self.point)]
        probe[product] += _PROBE * max(1.0, *(float(part.norm()) for part in probe)) * torch.outer(up, down)
        observe(self._loss.value_and_gradient(flattened(probe))[1])

        pace, least = float(modes[product].rates[mode]), 1e-9 * float(self.point.norm())
        blocks, rest = list[Places](), old
        while (coupled := [blocks_of(seen)[0] for seen in largest]) != blocks:
            blocks = coupled
            whole = all(len(own) == 1 for own in blocks)
            # A block without a pair of directions learns nothing.
            homes = [(i, one) for i, own in enumerate(blocks) for one in own if one[0] < min(shapes[i])]
            frames = [Block(i, *modes[i].block(one)) for i, one in homes]
            space = FactorSpace(self._loss, (), () if whole else tuple(frames))
            matrices = space.cut(self.point)
            ranks = [int((torch.linalg.svdvals(one) > least).sum()) for one in matrices]
            factors = balanced(matrices, ranks)
            number = next(n for n, (i, one) in enumerate(homes) if i == product and place in one)
            sides = (up, down) if whole else (frames[number].left.T @ up, frames[number].right.T @ down)
            seed = _SEED_SIZE * torch.cat(sides)[:, None]
            factors[number] = torch.cat([factors[number], seed], 1)
            landed = land(space, factors, pace, observe)
            if landed is None:
                return None
            rest = landed
        new, weakest, after = modes_at(self._loss, rest), math.inf, list[Tensor]()
        before = self.exponents.split([len(one.rates) for one in modes])
        for number, seen in enumerate(largest):
            if len(new[number].rates) > 1:
                found, link = blocks_of(seen)
                weakest = min(weakest, link)
                if len(found) > 1:
                    self.mixing = "tracked"
            active = mode if number == product else None
            carried, covered = carry(modes[number], new[number], before[number], active, blocks[number])
            after.append(carried)
            self.clear &= covered
        self._stay(rest, new, after)
        every, left = rest.ranks, rest.dropped
        return {"sign": 1, "rank": every[product], "left": left, "ranks": every, "mixing": weakest}


def land(space: FactorSpace, factors: Factors, pace: float, observe: Callable[[Tensor], None]) -> Rest | None:
    """The limit of gradient flow from `factors`, which need not be the nearest minimum, or None.

    The flow is followed, roughly, until it almost stops; Newton's method takes the last small way. Directions
    that decay to nothing are left out. `pace` is the rate at which the fastest column grows at first;
    `observe` sees the flat gradient at every step.
    """
    space = replace(space, ranks=tuple(columns.shape[1] for columns in factors))
    here, size, dropped = space.here(space.pack(factors)), 1 / pace, list[int]()
    observe(here.gradient)
    almost_still = _ALMOST_STILL
    for _ in range(_MOST_STEPS):
        linear, smallest, error = Linearised(space, here), 1e-13 * size, math.inf
        while error > 1:
            step = linear.step(size, _ROUGH, least=1e-3)
            error = step.error / _ROUGH
            there = space.here(step.end) if error <= 1 else here
            error = error if there.value.isfinite() and there.rate.isfinite().all() else math.inf
            size *= next_length(error)
            if error > 1 and size <= smallest:
                return None
        here = there
        observe(here.gradient)
        gone = _decayed(space, here)
        if gone:
            dropped += [space.owners[number] for number in gone]
            ranks = tuple(rank - gone.count(number) for number, rank in enumerate(space.ranks))
            kept = balanced(space.matrices(here.x), ranks)
            space = replace(space, ranks=ranks)
            here = space.here(space.pack(kept))
        moving = space.pace(here)
        pace = max(pace, moving)
        if moving <= almost_still * pace:
            limit = _polish(space, here)
            if limit is not None:
                observe(limit.gradient)
                totals = [0] * len(space.loss.shapes)
                for owner, rank in zip(space.owners, space.ranks, strict=True):
                    totals[owner] += rank
                products, value = space.products(limit.x), float(limit.value)
                return Rest(tuple(totals), products, limit.gradient, value, tuple(dropped))
            almost_still = _STILLER * moving / pace
    return None


def _decayed(space: FactorSpace, here: Here) -> list[int]:
    """The blocks with a direction that is next to nothing and shrinks, one entry per direction."""
    gone = []
    every = zip(space.matrices(here.x), space.cut(here.gradient), space.ranks, strict=True)
    for number, (product, gradient, rank) in enumerate(every):
        if rank:
            left, values, right = torch.linalg.svd(product, full_matrices=False)
            drive = -torch.einsum("ai,ab,ib->i", left[:, :rank], gradient, right[:rank])
            shrinks = (values[:rank] < _VANISHING * max(1.0, float(values[0]))) & (drive < 0)
            gone += [number] * int(shrinks.sum())
    return gone


def _polish(space: FactorSpace, here: Here) -> Here | None:
    """The point of rest next to `here`, if the flow from `here` ends there."""
    began = space.matrices(here.x)
    smallest = [
        float(torch.linalg.svdvals(product)[rank - 1]) if rank else 0.0
        for product, rank in zip(began, space.ranks, strict=True)
    ]
    last = math.inf
    for _ in range(_MOST_NEWTON_STEPS):
        move = _newton(space, here)
        if move is None:
            return here if last < _ROUNDING else None
        size = float(move.norm() / here.x.norm())
        here = space.here(here.x + move)
        for before, after, least in zip(began, space.matrices(here.x), smallest, strict=True):
            if float((after - before).norm()) > _CLOSE * least:
                return None
        if size <= _STILL or (size < _ROUNDING and size > 0.3 * last):
            return here
        if size > 0.7 * last:
            return None
        last = size
    return None


def _newton(space: FactorSpace, here: Here) -> Tensor | None:
    """Newton's move on the complement of the gauge directions, or None where that is not a descent."""
    linear, part = Linearised(space, here), math.sqrt(float(here.rate.norm() / here.x.norm()))
    # Newton's move is what the linear flow takes if it has for ever.
    spectrum = linear.spectrum(here.rate, _FOR_EVER, min(1e-2, max(part, 1e-5)))
    values, vectors = spectrum.values, spectrum.vectors
    gauge = sum(rank * rank for rank in space.ranks) if linear.dense else 0  # the rate has no part in it
    kept = values.abs().argsort(descending=True)[: len(values) - gauge]
    # A direction that the loss does not see at all is flat, and the rate has no part in it.
    kept = kept[values[kept].abs() > _FLAT * float(values.abs().max())]
    if not len(kept) or (values[kept] >= 0).any():
        return None
    return -vectors[:, kept] @ ((vectors[:, kept].T @ here.rate) / values[kept])
