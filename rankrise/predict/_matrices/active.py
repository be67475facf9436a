"""The active factors of all products as one vector, and gradient flow on it, step by step.

For products `A_j = U_j V_j^T` the vector holds the columns `[u_i; v_i]` of every product, one column after
another. The flow `U' = -G V, V' = -G^T U` is `x' = F(x) = -dL/dx`, so its Jacobian is symmetric.

Steps are taken by exprb43, an exponential Rosenbrock method of order four with an embedded one of order three
(Hochbruck, Ostermann & Schweitzer, SIAM J. Numer. Anal. 47, 2009). It solves the linearisation at x exactly:
a new column's growth and a stiff return to rest take a few long steps. The remainder
`N(tau) = a tau^2 + b tau^3` is known from two trial points.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from rankrise.predict._loss import Loss, Shape, flattened

_HIGHEST = 4
_SERIES = torch.tensor([1 / math.factorial(power + _HIGHEST) for power in range(16)], dtype=torch.float64)

_DENSE = 320
"""With more entries of all products than these, Krylov spaces stand in for the Jacobian's eigenvectors."""
_KRYLOV_TOLERANCE = 0.02
"""What a Krylov space may add to the error of a step, as a fraction of what is allowed."""
_MOST_VECTORS = 120

Factors = list[Tensor]
"""One (d1 + d2, k) matrix `W = [U; V]` per product."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues (m,) and eigenvectors (n, m) of the Jacobian, or of its restriction to a Krylov space.

    `response` (size, m) is what each eigenvector changes in the gradient of the loss.
    """

    values: Tensor
    vectors: Tensor
    response: Tensor
    _known: dict[float, list[Tensor]] = field(default_factory=dict)

    def phis(self, tau: float) -> list[Tensor]:
        """`phi_0` to `phi_4` of tau times the eigenvalues."""
        if tau not in self._known:
            self._known[tau] = phis(tau * self.values)
        return self._known[tau]


Parts = list[tuple[Spectrum, Tensor, dict[int, float]]]
"""Vectors by their coefficients in a spectrum. Each moves x by `tau * sum_k share_k part^(k-1) phi_k(tau J)`,
`part` being tau over the length of the step."""


def balanced(products: Sequence[Tensor], ranks: Sequence[int]) -> Factors:
    """Factors `[U; V]` (d1 + d2, rank) of products with `U^T U = V^T V`, largest column first."""
    factors = []
    for product, rank in zip(products, ranks, strict=True):
        left, values, right = torch.linalg.svd(product, full_matrices=False)
        size = values[:rank].sqrt()
        factors.append(torch.cat([left[:, :rank] * size, right[:rank].T * size]))
    return factors


@dataclass(frozen=True, eq=False)
class Here:
    """A point x (n,) of the active factors with the loss, its flat gradient and the rate `x' = F(x)`."""

    x: Tensor
    value: Tensor
    gradient: Tensor
    rate: Tensor


class Block(NamedTuple):
    """A block of a product: orthonormal `left` (d1, m) and `right` (d2, n) directions."""

    product: int
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class FactorSpace:
    """Factors as vectors (size,), with `ranks` columns per product, or per block if there are `blocks`."""

    loss: Loss
    ranks: tuple[int, ...]
    blocks: tuple[Block, ...] = ()

    @property
    def shapes(self) -> list[Shape]:
        """The shape of each block, or product."""
        return [(left.shape[1], right.shape[1]) for _, left, right in self.blocks] or [*self.loss.shapes]

    @property
    def owners(self) -> list[int]:
        """The product of each block."""
        return [block.product for block in self.blocks] or [*range(len(self.loss.shapes))]

    @property
    def size(self) -> int:
        """The number of entries of all columns."""
        return sum(sum(shape) * rank for shape, rank in zip(self.shapes, self.ranks, strict=True))

    def here(self, x: Tensor) -> Here:
        """Evaluate the loss and its gradient at x."""
        value, gradient = self.loss.value_and_gradient(self.products(x))
        return Here(x, value, gradient, self.pull(gradient, x))

    def pack(self, factors: Sequence[Tensor]) -> Tensor:
        """The vector (size,) of factors."""
        return torch.cat([columns.T.flatten() for columns in factors])

    def split(self, x: Tensor) -> Factors:
        """The factors in a vector, or in each of several (..., size)."""
        sizes = [(rank, sum(shape)) for shape, rank in zip(self.shapes, self.ranks, strict=True)]
        parts = x.split([rank * height for rank, height in sizes], dim=-1)
        return [part.unflatten(-1, size).mT for part, size in zip(parts, sizes, strict=True)]

    def matrices(self, x: Tensor) -> list[Tensor]:
        """`U V^T` of each block at `x`."""
        factors = self.split(x)
        return self._times(factors, factors)

    def products(self, x: Tensor) -> Tensor:
        """The flat products at `x`."""
        return self._join(self.matrices(x))

    def tangent(self, x: Tensor, direction: Tensor) -> Tensor:
        """The change `dU V^T + U dV^T` of the flat products, for directions (..., size)."""
        here, moved = self.split(x), self.split(direction)
        return self._join(self._times(moved, here)) + self._join(self._times(here, moved))

    def cut(self, flat: Tensor) -> list[Tensor]:
        """The matrix of each block within flat products (..., size)."""
        parts = self.loss.split(flat)
        return [left.T @ parts[product] @ right for product, left, right in self.blocks] or parts

    def pull(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Minus the flat `gradient` (..., of all products) applied to the factors of x."""
        parts = []
        for slope, columns in zip(self.cut(gradient), self.split(x), strict=True):
            up, down = columns.split(slope.shape[-2:], dim=-2)
            parts.append(-torch.cat([slope @ down, slope.mT @ up], -2).mT.flatten(-2))
        return torch.cat(parts, -1)

    def _times(self, left: Factors, right: Factors) -> list[Tensor]:
        """`U V^T` with U from one and V from other factors, batched over leading axes."""
        heights = [rows for rows, _ in self.shapes]
        pairs = zip(heights, left, right, strict=True)
        return [one[..., :rows, :] @ other[..., rows:, :].mT for rows, one, other in pairs]

    def _join(self, parts: list[Tensor]) -> Tensor:
        """The flat products with these matrices in their blocks."""
        if not self.blocks:
            return flattened(parts)
        products = self.loss.split(self.loss.zero())
        for (product, left, right), part in zip(self.blocks, parts, strict=True):
            products[product] = products[product] + left @ part @ right.T
        return flattened(products)

    def column_sizes(self, x: Tensor) -> Tensor:
        """The length of each column, (sum of ranks,)."""
        return torch.cat([columns.square().sum(-2).sqrt() for columns in self.split(x)], -1)

    def pace(self, here: Here) -> float:
        """The largest rate of a column, as a fraction of it."""
        sizes = self.column_sizes(here.x)
        return float((self.column_sizes(here.rate) / sizes.clamp(min=1e-300)).max()) if len(sizes) else 0.0


@dataclass(frozen=True, eq=False)
class Step:
    """A step of length `size` from `start` to `end`, with the largest relative `error` of a column."""

    start: Here
    size: float
    end: Tensor
    error: float
    parts: Parts
    remainders: tuple[Tensor, Tensor]

    def at(self, tau: float) -> Tensor:
        """The active factors (n,) at a time within the step."""
        return self.start.x + _moved(self.parts, tau, self.size)[0]

    def gradient_at(self, tau: float) -> Tensor:
        """The flat gradient at a time within the step: linear response and interpolated remainder."""
        _, response = _moved(self.parts, tau, self.size)
        middle, last = self.remainders
        part = tau / self.size
        remainder = part**2 * (8 * middle - last) + part**3 * (2 * last - 8 * middle)
        return self.start.gradient + response + remainder


def next_length(error: float) -> float:
    """By how much the next step should be longer, for an error as a fraction of what is allowed."""
    return min(5.0, max(0.2, 0.9 * max(error, 1e-8) ** -0.25)) if math.isfinite(error) else 0.2


class Linearised:
    """The flow linearised at a point; `whole`, all eigenvectors of its Jacobian, is there if `dense`."""

    def __init__(self, space: FactorSpace, start: Here, dense: bool = False) -> None:
        self._space, self._start = space, start
        self.dense = dense or space.loss.size <= _DENSE
        products = space.products(start.x)
        if self.dense:
            units = torch.eye(space.size, dtype=start.x.dtype)
            response = space.loss.hessian(products) @ space.tangent(start.x, units).T
            jacobian = self._image(units, response.T)
            values, vectors = torch.linalg.eigh((jacobian + jacobian.T) / 2)
            self.whole = Spectrum(values, vectors, response @ vectors)
        else:
            self._second = space.loss.hessian_product(products)

    def spectrum(self, b: Tensor, tau: float, tolerance: float) -> Spectrum:
        """All eigenvectors, or a space by Lanczos' method in which `phi_1(tau J) b` is good to `tolerance`
        times the length of b.
        """
        if self.dense:
            return self.whole
        basis, responses = b[None] / max(float(b.norm()), 1e-300), list[Tensor]()
        diagonal, beside = list[float](), list[float]()
        while True:
            responses.append(self._second(self._space.tangent(self._start.x, basis[-1])))
            image = self._image(basis[-1], responses[-1])
            diagonal.append(float(image @ basis[-1]))
            for _ in range(2):  # once leaves rounding along the vectors before
                image = image - basis.T @ (basis @ image)
            beside.append(float(image.norm()))
            exhausted = beside[-1] <= 1e-13 * max(map(abs, diagonal))
            exhausted = exhausted or len(basis) == min(_MOST_VECTORS, len(b))
            if exhausted or len(basis) % 4 == 0:
                edge = b.new_tensor(beside[:-1])
                small = torch.diag(b.new_tensor(diagonal)) + torch.diag(edge, 1) + torch.diag(edge, -1)
                values, turned = torch.linalg.eigh(small)
                last = turned[-1] @ (phis(tau * values)[1] * turned[0])
                missed = abs(tau * beside[-1] * float(last))
                if exhausted or not tolerance < missed < math.inf:
                    return Spectrum(values, basis.T @ turned, torch.stack(responses, 1) @ turned)
            basis = torch.cat([basis, image[None] / beside[-1]])

    def step(self, size: float, tolerance: float, least: float = 0.0) -> Step:
        """A step of length `size`; `tolerance` is the error allowed in a column, as a fraction of it, or of
        `least` times the largest column.
        """
        start, sizes = self._start, self._space.column_sizes
        allowed = _KRYLOV_TOLERANCE * tolerance * float(start.x.norm())
        first = self._part(start.rate, size, allowed)
        far, near = (_moved([(*first, {1: 1})], tau, size) for tau in (size, size / 2))
        nonlinear, middle = self._remainders(*near)
        push = self._part(nonlinear, size, allowed)
        extra = _moved([(*push, {1: 1})], size, size)
        last_nonlinear, last = self._remainders(far[0] + extra[0], far[1] + extra[1])
        # The polynomial through both remainders: 8 and 2 are those of a and b in the module's docstring.
        pull = self._part(last_nonlinear, size, allowed)
        of_fourth_order: Parts = [(*push, {4: -48}), (*pull, {4: 12})]
        parts: Parts = [(*first, {1: 1}), (*push, {3: 16, 4: -48}), (*pull, {3: -2, 4: 12})]
        end = start.x + _moved(parts, size, size)[0]
        largest = torch.maximum(sizes(start.x), sizes(end))
        largest = largest.clamp(min=least * float(largest.max()))
        error = float((sizes(_moved(of_fourth_order, size, size)[0]) / largest).max())
        return Step(start, size, end, error, parts, (middle, last))

    def _part(self, b: Tensor, size: float, allowed: float) -> tuple[Spectrum, Tensor]:
        """A spectrum that knows functions of the Jacobian on b, and the coefficients of b in it."""
        spectrum = self.spectrum(b, size, allowed / max(size * float(b.norm()), 1e-300))
        return spectrum, spectrum.vectors.T @ b

    def _image(self, direction: Tensor, response: Tensor) -> Tensor:
        pull = self._space.pull
        return pull(response, self._start.x) + pull(self._start.gradient, direction)

    def _remainders(self, move: Tensor, response: Tensor) -> tuple[Tensor, Tensor]:
        """What the linearisation misses at `x + move`: of the rate (n,), and of the gradient."""
        there = self._space.here(self._start.x + move)
        missed = there.gradient - self._start.gradient - response
        return there.rate - self._start.rate - self._image(move, response), missed


def _moved(parts: Parts, tau: float, size: float) -> tuple[Tensor, Tensor]:
    """The move (n,) and the response in the gradient at time tau."""
    moves, responses = [], []
    for spectrum, weights, shares in parts:
        functions = spectrum.phis(tau)
        terms = [share * (tau / size) ** (k - 1) * functions[k] for k, share in shares.items()]
        taken = tau * weights * sum(terms[1:], terms[0])
        moves.append(spectrum.vectors @ taken)
        responses.append(spectrum.response @ taken)
    return sum(moves[1:], moves[0]), sum(responses[1:], responses[0])


def phis(z: Tensor) -> list[Tensor]:
    """`phi_0` to `phi_4` of each entry of z (m,).

    `phi_0 = exp` and `phi_k(z) = (phi_(k-1)(z) - 1/(k-1)!) / z`: what a linear equation makes of an
    inhomogeneity `tau^(k-1)/(k-1)!` (Hochbruck & Ostermann, *Exponential integrators*, Acta Numerica 2010).
    """
    near = z.abs() < 1
    small, large = torch.where(near, z, 0.0), torch.where(near, 1.0, z)
    powers = torch.arange(len(_SERIES))
    # Near zero from the highest down, elsewhere from the lowest up: neither way cancels.
    down = [(small[:, None] ** powers) @ _SERIES]
    for k in range(_HIGHEST - 1, -1, -1):
        down.append(small * down[-1] + 1 / math.factorial(k))
    up = [large.exp(), torch.expm1(large) / large]
    for k in range(1, _HIGHEST):
        up.append((up[-1] - 1 / math.factorial(k)) / large)
    return [torch.where(near, low, high) for low, high in zip(reversed(down), up, strict=True)]
