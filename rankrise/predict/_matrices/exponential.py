"""Exponentials: of the linear flow of inactive columns, and functions of the Jacobian of the active ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

# The two Gauss points of a step, and the weights of a commutator-free method of order four (Blanes & Moan,
# Appl. Numer. Math. 56, 2006): two exponentials, each of a combination of M at both points.
GAUSS = (0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6)
_HEAVY, _LIGHT = 0.25 + math.sqrt(3) / 6, 0.25 - math.sqrt(3) / 6

_MOST_VECTORS = 120
_HIGHEST = 4
_SERIES = torch.tensor([1 / math.factorial(power + _HIGHEST) for power in range(16)], dtype=torch.float64)


def advance(columns: Tensor, rows: int, early: Tensor, late: Tensor, time: float) -> Tensor:
    """Follow `W' = M(t) W`, `M = [[0, -G], [-G^T, 0]]`, for a `time`: columns (d1 + d2, c) under a gradient
    (d1, d2) that is `early` and `late` at Gauss' points.
    """
    columns = exponential(columns, rows, time * (_HEAVY * early + _LIGHT * late))
    return exponential(columns, rows, time * (_LIGHT * early + _HEAVY * late))


def exponential(columns: Tensor, rows: int, gradient: Tensor) -> Tensor:
    """`exp([[0, -G], [-G^T, 0]])` times columns, from the singular vectors of the gradient (d1, d2).

    >>> columns = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    >>> exponential(columns, 1, torch.tensor([[-1.0]], dtype=torch.float64)).T   # cosh 1 and sinh 1
    tensor([[1.5431, 1.1752]], dtype=torch.float64)
    """
    left, values, right = torch.linalg.svd(-gradient, full_matrices=False)
    up, down = columns[:rows], columns[rows:]
    along, across = left.T @ up, right @ down
    growing = (along + across) / 2 * values.exp()[:, None]
    shrinking = (along - across) / 2 * (-values).exp()[:, None]
    moved_up = up - left @ along + left @ (growing + shrinking)
    return torch.cat([moved_up, down - right.T @ across + right.T @ (growing - shrinking)])


def phis(z: Tensor) -> list[Tensor]:
    """`phi_0` to `phi_4` of each entry of z (m,).

    `phi_0 = exp` and `phi_k(z) = (phi_(k-1)(z) - 1/(k-1)!) / z`: what a linear equation makes of an
    inhomogeneity `tau^(k-1)/(k-1)!` (Hochbruck & Ostermann, *Exponential integrators*, Acta Numerica 2010).

    >>> torch.stack(phis(torch.tensor([0.0, 1.0], dtype=torch.float64)))[1:3]
    tensor([[1.0000, 1.7183],
            [0.5000, 0.7183]], dtype=torch.float64)
    """
    near = z.abs() < 1
    small, large = torch.where(near, z, 0.0), torch.where(near, 1.0, z)
    powers = torch.arange(len(_SERIES), device=z.device)
    # Near zero from the highest down, elsewhere from the lowest up: neither way cancels.
    down = [(small[:, None] ** powers) @ _SERIES.to(z.device)]
    for k in range(_HIGHEST - 1, -1, -1):
        down.append(small * down[-1] + 1 / math.factorial(k))
    up = [large.exp(), torch.expm1(large) / large]
    for k in range(1, _HIGHEST):
        up.append((up[-1] - 1 / math.factorial(k)) / large)
    return [torch.where(near, low, high) for low, high in zip(reversed(down), up, strict=True)]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A symmetric operator on the span of orthonormal `vectors` (n, m), with eigenvalues `values` (m,).

    `response` (size, m) is what each eigenvector changes in the gradient of the loss.
    """

    values: Tensor
    vectors: Tensor
    response: Tensor
    _known: dict[float, list[Tensor]] = field(default_factory=dict, repr=False)

    def phis(self, tau: float) -> list[Tensor]:
        """`phi_0` to `phi_4` of tau times the eigenvalues."""
        if tau not in self._known:
            self._known[tau] = phis(tau * self.values)
        return self._known[tau]


def dense_spectrum(matrix: Tensor, response: Tensor) -> Spectrum:
    """All eigenvectors of a symmetric matrix (n, n); `response` (size, n) of the unit vectors."""
    values, vectors = torch.linalg.eigh(matrix)
    return Spectrum(values, vectors, response @ vectors)


def krylov_spectrum(
    apply: Callable[[Tensor], tuple[Tensor, Tensor]], b: Tensor, tau: float, tolerance: float
) -> Spectrum:
    """Lanczos' method: a space in which `phi_1(tau J) b` is good to `tolerance` times the length of b.

    `apply(v)` gives `J v` and the response of v. Vectors are kept orthogonal to all before them.
    """
    length = float(b.norm())
    if length == 0:
        return Spectrum(b.new_zeros(1), b.new_zeros(len(b), 1), apply(b)[1][:, None] * 0)
    basis, responses = [b / length], []
    diagonal: list[float] = []
    beside: list[float] = []
    while True:
        image, response = apply(basis[-1])
        responses.append(response)
        diagonal.append(float(image @ basis[-1]))
        known = torch.stack(basis)
        image = image - known.T @ (known @ image)
        image = image - known.T @ (known @ image)
        beside.append(float(image.norm()))
        count = len(diagonal)
        exhausted = beside[-1] <= 1e-13 * max(map(abs, diagonal)) or count >= min(_MOST_VECTORS, len(b))
        if exhausted or count % 4 == 0:
            edge = b.new_tensor(beside[:-1])
            small = torch.diag(b.new_tensor(diagonal)) + torch.diag(edge, 1) + torch.diag(edge, -1)
            values, turned = torch.linalg.eigh(small)
            last = turned[-1] @ (phis(tau * values)[1] * turned[0])
            if exhausted or abs(tau * beside[-1] * float(last)) <= tolerance:
                return Spectrum(values, known.T @ turned, torch.stack(responses, 1) @ turned)
        basis.append(image / beside[-1])
