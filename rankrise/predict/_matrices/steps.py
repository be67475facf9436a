"""Gradient flow of the active factors, step by step: exact where it is linear.

The method is exprb43, an exponential Rosenbrock method of order four with an embedded one of order three
(Hochbruck, Ostermann & Schweitzer, SIAM J. Numer. Anal. 47, 2009). It splits the rate at x into its
linearisation, which it solves exactly, and a remainder `N(tau) = a tau^2 + b tau^3`, known from two trial
points. A new column that grows from next to nothing and a stiff return to a point of rest are both linear:
they take a few long steps, and stability limits none.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rankrise.predict._matrices.exponential import Spectrum, dense_spectrum, krylov_spectrum
from rankrise.predict._matrices.factors import FactorSpace, Here

DENSE = 320
"""Up to so many entries of all products we take all eigenvectors of the Jacobian, beyond Krylov spaces."""

_KRYLOV_TOLERANCE = 0.02
"""What a Krylov space may add to the error of a step, as a fraction of what is allowed."""


@dataclass(frozen=True, eq=False)
class Part:
    """A vector, by its coefficients in a spectrum, that moves x by `tau * sum_k c_k part^(k-1) phi_k(tau J)`.

    `part` is tau over the length of the step, and `shares` are the numbers c_1 to c_4.
    """

    spectrum: Spectrum
    weights: Tensor
    shares: tuple[float, float, float, float]

    def coefficients(self, tau: float, size: float) -> Tensor:
        """The coefficients of the move at tau."""
        functions = self.spectrum.phis(tau)
        terms = [
            share * (tau / size) ** power * functions[power + 1]
            for power, share in enumerate(self.shares)
            if share
        ]
        return tau * self.weights * sum(terms[1:], terms[0])


@dataclass(frozen=True, eq=False)
class Step:
    """A step of length `size` from `start` to `end`, with its `error` (n,), and what lies between."""

    start: Here
    size: float
    end: Tensor
    error: Tensor
    parts: tuple[Part, ...]
    remainders: tuple[Tensor, Tensor]

    def at(self, tau: float) -> Tensor:
        """The active factors (n,) at a time within the step."""
        return self.start.x + _sum(self.parts, tau, self.size)[0]

    def with_end(self, end: Here) -> tuple["Step", float]:
        """The step with the true gradient at its end, and how far that is from what was foreseen."""
        missed = end.gradient - self.gradient_at(self.size)
        middle, last = self.remainders
        return replace(self, remainders=(middle, last + missed)), float(missed.norm())

    def gradient_at(self, tau: float) -> Tensor:
        """The flat gradient at a time within the step: linear response and interpolated remainder."""
        _, response = _sum(self.parts, tau, self.size)
        middle, last = self.remainders
        part = tau / self.size
        remainder = part**2 * (8 * middle - last) + part**3 * (2 * last - 8 * middle)
        return self.start.gradient + response + remainder


class Linearised:
    """The flow linearised at a point: takes steps of any length from there."""

    def __init__(self, space: FactorSpace, start: Here) -> None:
        self.space, self.start = space, start
        self._whole: Spectrum | None = None
        products = space.products(start.x)
        if space.loss.size <= DENSE:
            units = torch.eye(space.size, dtype=start.x.dtype, device=start.x.device)
            response = space.loss.hessian(products) @ space.tangent(start.x, units).T
            jacobian = self._image(units, response.T)
            self._whole = dense_spectrum((jacobian + jacobian.T) / 2, response)
        else:
            self._second = space.loss.hessian_product(products)

    @property
    def whole(self) -> Spectrum | None:
        """All eigenvectors of the Jacobian, where it is small enough to have them."""
        return self._whole

    def apply(self, direction: Tensor) -> tuple[Tensor, Tensor]:
        """The Jacobian times a direction (n,), and the direction's response in the gradient."""
        response = self._second(self.space.tangent(self.start.x, direction))
        return self._image(direction, response), response

    def step(self, size: float, tolerance: float) -> Step:
        """A step of length `size`; `tolerance` is the error allowed, relative to x."""
        start = self.start
        allowed = _KRYLOV_TOLERANCE * tolerance * float(start.x.norm())
        first = self._part(start.rate, size, allowed, (1, 0, 0, 0))
        far, near = _sum((first,), size, size), _sum((first,), size / 2, size)
        nonlinear, middle = self._remainders(*near)
        push = self._part(nonlinear, size, allowed, (1, 0, 0, 0))
        extra = _sum((push,), size, size)
        last_nonlinear, last = self._remainders(far[0] + extra[0], far[1] + extra[1])
        # The polynomial through both remainders: 8 and 2 are those of a and b in the module's docstring.
        from_middle = replace(push, shares=(0, 0, 16, -48))
        from_last = self._part(last_nonlinear, size, allowed, (0, 0, -2, 12))
        of_fourth_order = (replace(push, shares=(0, 0, 0, -48)), replace(from_last, shares=(0, 0, 0, 12)))
        error, _ = _sum(of_fourth_order, size, size)
        parts = (first, from_middle, from_last)
        end = start.x + _sum(parts, size, size)[0]
        return Step(start, size, end, error, parts, (middle, last))

    def _part(
        self, b: Tensor, size: float, allowed: float, shares: tuple[float, float, float, float]
    ) -> Part:
        if self._whole is not None:
            return Part(self._whole, self._whole.weights(b), shares)
        tolerance = allowed / max(size * float(b.norm()), 1e-300)
        spectrum = krylov_spectrum(self.apply, b, size, tolerance)
        return Part(spectrum, spectrum.weights(b), shares)

    def _image(self, direction: Tensor, response: Tensor) -> Tensor:
        return self.space.pull(response, self.start.x) + self.space.pull(self.start.gradient, direction)

    def _remainders(self, move: Tensor, response: Tensor) -> tuple[Tensor, Tensor]:
        """What the linearisation misses at `x + move`: of the rate (n,), and of the gradient."""
        there = self.space.here(self.start.x + move)
        missed = there.gradient - self.start.gradient - response
        return there.rate - self.start.rate - self._image(move, response), missed


def _sum(parts: tuple[Part, ...], tau: float, size: float) -> tuple[Tensor, Tensor]:
    """The move (n,) and the response in the gradient at time tau."""
    together: dict[int, tuple[Spectrum, Tensor]] = {}
    for part in parts:
        taken = part.coefficients(tau, size)
        _, before = together.get(id(part.spectrum), (None, 0.0))
        together[id(part.spectrum)] = part.spectrum, before + taken
    pairs = [(spectrum.vectors @ taken, spectrum.response @ taken) for spectrum, taken in together.values()]
    moves, responses = zip(*pairs, strict=True)
    return sum(moves[1:], moves[0]), sum(responses[1:], responses[0])
