"""Where the flow of the active factors comes to rest.

It is the limit of a flow, not any minimum. The flow is followed, roughly, until it almost stops; Newton's
method, modulo the gauge `U -> U g, V -> V g^-T`, takes the last small way, and its result counts only if it
is close and attracting.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.predict._loss import Loss, flattened
from rankrise.predict._matrices.active import Factors, FactorSpace, Here, Linearised, balanced, next_length

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
_MOST_CONJUGATE_STEPS = 500


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


def land(
    loss: Loss, factors: Factors, pace: float, observe: Callable[[Tensor], None] = lambda gradient: None
) -> Rest | None:
    """The limit of gradient flow from `factors`, or None where it finds none.

    `pace` is the rate at which the fastest column grows at first; `observe` sees the flat gradient at every
    step. A direction that decays to nothing is left out of the result.
    """
    space = FactorSpace(loss, tuple(columns.shape[1] for columns in factors))
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
            dropped += gone
            ranks = tuple(rank - gone.count(number) for number, rank in enumerate(space.ranks))
            kept = balanced(loss.split(space.products(here.x)), ranks)
            space = FactorSpace(loss, ranks)
            here = space.here(space.pack(kept))
        moving = space.pace(here)
        pace = max(pace, moving)
        if moving <= almost_still * pace:
            limit = _polish(space, here)
            if limit is not None:
                observe(limit.gradient)
                products, value = space.products(limit.x), float(limit.value)
                return Rest(space.ranks, products, limit.gradient, value, tuple(dropped))
            almost_still = _STILLER * moving / pace
    return None


def _decayed(space: FactorSpace, here: Here) -> list[int]:
    """The products with a direction that is next to nothing and shrinks, one entry per direction."""
    gone = []
    products, gradients = space.loss.split(space.products(here.x)), space.loss.split(here.gradient)
    for number, (product, gradient, rank) in enumerate(zip(products, gradients, space.ranks, strict=True)):
        if rank:
            left, values, right = torch.linalg.svd(product, full_matrices=False)
            drive = -torch.einsum("ai,ab,ib->i", left[:, :rank], gradient, right[:rank])
            shrinks = (values[:rank] < _VANISHING * max(1.0, float(values[0]))) & (drive < 0)
            gone += [number] * int(shrinks.sum())
    return gone


def _polish(space: FactorSpace, here: Here) -> Here | None:
    """The point of rest next to `here`, if the flow from `here` ends there."""
    loss, began = space.loss, space.loss.split(space.products(here.x))
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
        for before, after, least in zip(began, loss.split(space.products(here.x)), smallest, strict=True):
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
    linear = Linearised(space, here)
    if linear.spectrum is None:
        return _conjugate_gradients(linear, here)
    values, vectors = linear.spectrum.values, linear.spectrum.vectors
    gauge = sum(rank * rank for rank in space.ranks)
    kept = values.abs().argsort(descending=True)[: len(values) - gauge]
    # A direction that the loss does not see at all is flat, and the rate has no part in it.
    kept = kept[values[kept].abs() > _FLAT * float(values.abs().max())]
    if not len(kept) or (values[kept] >= 0).any():
        return None
    return -vectors[:, kept] @ ((vectors[:, kept].T @ here.rate) / values[kept])


def _conjugate_gradients(linear: Linearised, here: Here) -> Tensor | None:
    """The same without eigenvectors: the rate is orthogonal to the gauge, and so is all that follows."""
    move, residual = torch.zeros_like(here.x), here.rate
    direction, square = residual, float(residual @ residual)
    part = math.sqrt(square) / float(here.x.norm())
    target = square * min(1e-2, max(math.sqrt(part), 1e-5)) ** 2
    for _ in range(_MOST_CONJUGATE_STEPS):
        if square <= target:
            break
        image = -linear.apply(direction[None])[0][0]
        curvature = float(direction @ image)
        if curvature <= 0:
            return None
        move = move + square / curvature * direction
        residual = residual - square / curvature * image
        square, before = float(residual @ residual), square
        direction = residual + square / before * direction
    return move


class Block(NamedTuple):
    """A block of a product: orthonormal `left` (d1, m) and `right` (d2, n) directions."""

    product: int
    left: Tensor
    right: Tensor


@dataclass(frozen=True, eq=False)
class BlockLoss:
    """The loss of a matrix per block; `observe` sees the flat gradient of whole products."""

    whole: Loss
    blocks: Sequence[Block]
    observe: Callable[[Tensor], None]

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The flat whole products of a matrix per block."""
        products = self.whole.split(self.whole.zero())
        for (product, left, right), part in zip(self.blocks, parts, strict=True):
            products[product] = products[product] + left @ part @ right.T
        return flattened(products)

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The matrix of each block within flat whole products."""
        products = self.whole.split(flat)
        return [left.T @ products[product] @ right for product, left, right in self.blocks]

    def __call__(self, *parts: Tensor) -> Tensor:
        """The loss, twice differentiable by autograd."""
        return self.whole(self.join(parts))

    def value_and_gradient(self, *parts: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient per block."""
        value, gradient = self.whole.value_and_gradient(self.join(parts))
        self.observe(gradient)
        return value, self.cut(gradient)

    def hessian_product(self, *parts: Tensor) -> Callable[..., list[Tensor]]:
        """The Hessian as a function from directions to results, (m, rows, columns) per block."""
        product = self.whole.hessian_product(self.join(parts))
        return lambda *directions: self.cut(product(self.join(directions)))

    def land(self, point: Tensor, product: int, seed: Tensor, pace: float) -> Rest | None:
        """Where the flow comes to rest from a `point` (size,) with a column `seed` more in a product."""
        matrices, rows = self.cut(point), self.whole.shapes[product][0]
        least = 1e-9 * float(point.norm())
        factors = balanced(matrices, [int((torch.linalg.svdvals(one) > least).sum()) for one in matrices])
        for number, (home, left, right) in enumerate(self.blocks):
            own = torch.cat([left.T @ seed[:rows], right.T @ seed[rows:]]) if home == product else seed * 0
            if float(own.norm()) > 0.5 * float(seed.norm()):
                factors[number] = torch.cat([factors[number], own], 1)
        shapes = tuple((left.shape[1], right.shape[1]) for _, left, right in self.blocks)
        cut = Loss(self, shapes, False)
        landed = land(cut, factors, pace)
        if landed is None:
            return None
        products = self.join(cut.split(landed.products))
        value, gradient = self.whole.value_and_gradient(products)
        ranks = [0] * len(self.whole.shapes)
        for block, rank in zip(self.blocks, landed.ranks, strict=True):
            ranks[block.product] += rank
        dropped = tuple(self.blocks[number].product for number in landed.dropped)
        return Rest(tuple(ranks), products, gradient, float(value), dropped)
