"""The inactive directions of a product: how fast each grows, how far it has come, and what a transition does.

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
from dataclasses import dataclass, replace

import torch
from torch import Tensor

NO_COUPLING = 1e-8
"""A coupling below this fraction of the gradient is rounding."""

Places = list[list[int]]
"""Blocks of directions, each a list of places in a frame."""


@dataclass(frozen=True, eq=False)
class Modes:
    """The directions of a product (d1, d2) of rank k on a plateau.

    `left` (d1, d1) and `right` (d2, d2) are orthogonal: k active directions, then the modes in order of their
    rates (n,), then what the longer side has left over. `exponents` (n,) are along `+p q^T`.
    """

    left: Tensor
    right: Tensor
    rank: int
    rates: Tensor
    exponents: Tensor

    @property
    def pairs(self) -> int:
        """min(d1, d2)."""
        return min(len(self.left), len(self.right))

    def waiting(self, least: float) -> Tensor:
        """The rescaled time (n,) until each mode becomes active, if its rate stays; inf below a rate."""
        moves = self.rates > least
        return torch.where(moves, (1 - self.exponents) / torch.where(moves, self.rates, 1.0), math.inf)

    def wait(self, time: float) -> "Modes":
        """The same modes after a rescaled time."""
        return replace(self, exponents=self.exponents + self.rates * time)

    def seed(self, mode: int, size: float) -> Tensor:
        """A column `[u; v]` (d1 + d2, 1) along a mode; u and v have length `size`."""
        place = self.rank + mode
        return size * torch.cat([self.left[:, place], self.right[:, place]])[:, None]


def modes_at(product: Tensor, gradient: Tensor, rank: int) -> Modes:
    """The modes of a product (d1, d2) of some rank, their exponents zero."""
    left, _, right = torch.linalg.svd(product)
    right = right.T
    inner_left, rates, inner_right = torch.linalg.svd(-left[:, rank:].T @ gradient @ right[:, rank:])
    left = torch.cat([left[:, :rank], left[:, rank:] @ inner_left], 1)
    right = torch.cat([right[:, :rank], right[:, rank:] @ inner_right.T], 1)
    return Modes(left, right, rank, rates, torch.zeros_like(rates))


class Coupling:
    """The directions of a plateau that a transition couples: the largest entries of the gradient in their
    frame.
    """

    def __init__(self, modes: Modes) -> None:
        size = max(len(modes.left), len(modes.right))
        self._modes, self._largest = modes, modes.left.new_zeros(size, size)

    def observe(self, gradient: Tensor) -> None:
        """Take note of a gradient (d1, d2) on the way."""
        entries = (self._modes.left.T @ gradient @ self._modes.right).abs()
        part = self._largest[: entries.shape[0], : entries.shape[1]]
        torch.maximum(part, entries, out=part)

    @property
    def strength(self) -> Tensor:
        """The coupling of each pair of directions (m, m), m = max(d1, d2), as a fraction of the largest."""
        largest = float(self._largest.max())
        return torch.maximum(self._largest, self._largest.T) / (largest if largest > 0 else 1.0)


def blocks_of(strength: Tensor) -> tuple[Places, float]:
    """The blocks of coupled directions, and the weakest link that holds all of them together.

    >>> blocks_of(torch.tensor([[1.0, 0.2, 0.0], [0.2, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    ([[0, 1], [2]], 0.0)
    """
    links = strength.tolist()
    waiting = dict.fromkeys(range(1, len(links)), 0.0)
    blocks, newest, weakest = [[0]], 0, math.inf
    while waiting:
        for other in waiting:
            waiting[other] = max(waiting[other], links[newest][other])
        newest = max(waiting, key=lambda other: (waiting[other], -other))
        link = waiting.pop(newest)
        weakest = min(weakest, link)
        # A maximal spanning tree grows by its strongest link: once that is nothing, a new block begins.
        if link > NO_COUPLING:
            blocks[-1].append(newest)
        else:
            blocks.append([newest])
    return [sorted(block) for block in blocks], weakest


def carry(old: Modes, new: Modes, winner: int | None, blocks: Places) -> tuple[Modes, bool]:
    """The new modes with their exponents after a transition, and whether the theory covers it.

    `winner` is the old mode that became active. The theory does not say what follows when a direction is
    dropped from a block with other inactive ones, or moves from one block into another; in the latter case
    the exponents are unknown.
    """
    exponents = torch.zeros_like(new.exponents)
    home = _homes(old, new, blocks)
    clear = True
    for number, block in enumerate(blocks):
        pairs = [place for place in block if place < old.pairs]
        before = [place for place in pairs if place >= old.rank and place - old.rank != winner]
        now = [place for place in range(new.pairs) if home[place] == number]
        after = [place for place in now if place >= new.rank]
        dropped = len(after) - len(before)
        if dropped < 0 or len(now) != len(pairs):
            return replace(new, exponents=torch.full_like(exponents, torch.nan)), False
        if not after:
            continue
        held = [float(old.exponents[place - old.rank]) for place in before] + [1.0] * dropped
        sizes = sorted(map(abs, held), reverse=True)
        for place, size in zip(after, sizes, strict=True):
            exponents[place - new.rank] = size
        square = len(block) == len(pairs)
        if square:
            exponents[after[-1] - new.rank] *= _orientation(old, new, pairs, now) * _sign(held)
        clear = clear and not (dropped and (len(after) > 1 or not square))
    return replace(new, exponents=exponents), clear


def _homes(old: Modes, new: Modes, blocks: Places) -> list[int]:
    """The block (of old directions) in which each new pair of directions lies."""
    if len(blocks) == 1:
        return [0] * new.pairs
    shares = []
    for block in blocks:
        left = old.left[:, [place for place in block if place < len(old.left)]]
        right = old.right[:, [place for place in block if place < len(old.right)]]
        share = (left.T @ new.left).square().sum(0)[: new.pairs]
        shares.append(share + (right.T @ new.right).square().sum(0)[: new.pairs])
    home: list[int] = torch.stack(shares).argmax(0).tolist()
    return home


def _orientation(old: Modes, new: Modes, before: list[int], after: list[int]) -> float:
    """1 if the frames of a block, before and after, can be turned into each other, else -1."""
    turns = (
        torch.linalg.det(old.left[:, before].T @ new.left[:, after]),
        torch.linalg.det(old.right[:, before].T @ new.right[:, after]),
    )
    return _sign([float(turn) for turn in turns])


def _sign(numbers: list[float]) -> float:
    return -1.0 if sum(number < 0 for number in numbers) % 2 else 1.0
