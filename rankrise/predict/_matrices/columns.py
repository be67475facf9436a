"""The factors of one product as columns on logarithmic scales, so that 10**-1000 is a number like any other.

Gradient flow commutes with rotations of the columns, `W -> W R` for `W = [U; V]`. They are rotated so that
columns are orthogonal and each carries one scale: a small one then keeps its relative accuracy beside a large
one. `U^T U - V^T V = W^T J W`, J = diag(I, -I), never changes; rounding does change it, and with it the sign
that the last exponent of a square product depends on, so it is restored.
"""

import math
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_ORTHOGONAL = 1e-13
_MOST_SWEEPS = 12
_FAR = 9.0  # the e-foldings from which on one column is next to nothing beside another
_KNOWN = 0.1
"""Between columns of about the initial size or below, float64 does not keep the conserved quantity."""

# The two Gauss points of a step, and the weights of a commutator-free method of order four (Blanes & Moan,
# Appl. Numer. Math. 56, 2006): two exponentials, each of a combination of M at both points.
GAUSS = (0.5 - math.sqrt(3) / 6, 0.5 + math.sqrt(3) / 6)
_HEAVY, _LIGHT = 0.25 + math.sqrt(3) / 6, 0.25 - math.sqrt(3) / 6


@dataclass(eq=False)
class Columns:
    """`W` (d1 + d2, c) as unit `directions` times `exp(logs)` (c,).

    `conserved` (c, c) is `W^T J W` divided by `exp(2 log_alpha)`, in the present rotation.
    """

    rows: int
    directions: Tensor
    logs: Tensor
    conserved: Tensor
    log_alpha: float

    @staticmethod
    def of_start(u: Tensor, v: Tensor, log_alpha: float) -> "Columns":
        """The columns of `exp(log_alpha) * (U, V)`, orthogonal, largest first; zero ones are left out."""
        left, sizes, right = torch.linalg.svd(torch.cat([u, v]), full_matrices=False)
        kept = sizes > 1e-14 * sizes[0]
        rotated = torch.cat([u, v]) @ right[kept].T
        up, down = rotated[: len(u)], rotated[len(u) :]
        conserved = up.T @ up - down.T @ down
        return Columns(len(u), left[:, kept], sizes[kept].log() + log_alpha, conserved, log_alpha)

    @property
    def factors(self) -> Tensor:
        """The columns at their true size, (d1 + d2, c)."""
        return self.directions * self.logs.exp()

    def set_columns(self, place: slice | Tensor, columns: Tensor, logs: Tensor | float = 0.0) -> None:
        """Put `columns * exp(logs)` into some places."""
        sizes = columns.norm(dim=0)
        self.directions[:, place] = columns / sizes
        self.logs[place] = logs + sizes.log()

    def rotate(self, beginning: int = 0) -> None:
        """Sort the columns from number `beginning` on, and make them orthogonal by one-sided rotations.

        Jacobi's keep graded columns accurate (Demmel & Veselic, SIAM J. Matrix Anal. Appl. 13, 1992).
        """
        self._sort(beginning)
        for _ in range(_MOST_SWEEPS):
            part = self.directions[:, beginning:]
            overlaps = (part.T @ part).fill_diagonal_(0)
            if not overlaps.numel() or float(overlaps.abs().max()) <= _ORTHOGONAL:
                return
            for first, second in rounds(len(self.logs) - beginning):
                self._rotate_pairs(beginning + first, beginning + second)
            self._sort(beginning)

    def _sort(self, beginning: int) -> None:
        place = torch.arange(len(self.logs))
        place[beginning:] = beginning + self.logs[beginning:].argsort(descending=True)
        self.directions, self.logs = self.directions[:, place], self.logs[place]
        self.conserved = self.conserved[place][:, place]

    def _rotate_pairs(self, first: Tensor, second: Tensor) -> None:
        swapped = self.logs[first] < self.logs[second]
        large, small = torch.where(swapped, second, first), torch.where(swapped, first, second)
        a, b = self.directions[:, large], self.directions[:, small]
        overlap = (a * b).sum(0)
        ratio = (self.logs[small] - self.logs[large]).exp()
        gap = 1 - ratio**2
        # The tangent of the angle, divided by the ratio of the two lengths: finite however small that is.
        bottom = gap + (gap**2 + 4 * (ratio * overlap) ** 2).sqrt()
        slope = torch.where(overlap == 0, 0.0, 2 * overlap / bottom.clamp(min=1e-300))
        tangent = ratio * slope
        cosine = 1 / (1 + tangent**2).sqrt()
        self.set_columns(large, cosine * (a + tangent * ratio * b), self.logs[large])
        self.set_columns(small, cosine * (b - slope * a), self.logs[small])
        turn = torch.eye(len(self.logs), dtype=a.dtype)
        turn[large, large] = turn[small, small] = cosine
        turn[small, large], turn[large, small] = cosine * tangent, -cosine * tangent
        self.conserved = turn.T @ self.conserved @ turn

    def separate(self, count: int) -> None:
        """Rotate all columns after the first `count` against those of the first that are far larger.

        The angles are tiny: what the larger ones would take is below their rounding.
        """
        if count in (0, len(self.logs)):
            return
        far = (self.logs[:count] > float(self.logs[count:].max()) + _FAR).nonzero()[:, 0]
        large, small = self.directions[:, far], self.directions[:, count:]
        shares = torch.linalg.lstsq(large, small).solution
        turn = torch.eye(len(self.logs), dtype=small.dtype)
        angles = shares * (self.logs[count:] - self.logs[far, None]).exp()
        turn[far, count:], turn[count:, far] = -angles, angles.T
        self.conserved = turn.T @ self.conserved @ turn
        self.set_columns(slice(count, None), small - large @ shares, self.logs[count:])

    def restore(self, beginning: int = 0) -> None:
        """Give `W^T J W` its value again, charging the smaller column of each pair, from `beginning` on.

        The columns are orthogonal and sorted. `w_j + eta J w_i` changes `w_i^T J w_j` by eta, and to first
        order nothing else.
        """
        for _ in range(2):
            flipped = self.directions.clone()
            flipped[self.rows :] *= -1
            part = (2 * self.log_alpha - self.logs[:, None] - self.logs).exp()
            missing = torch.where(part < _KNOWN, part * self.conserved - self.directions.T @ flipped, 0.0)
            change = missing.triu(1) + torch.diag(missing.diagonal() / 2)
            change[:, :beginning] = 0
            self.set_columns(slice(None), self.directions + flipped @ change, self.logs)

    def log_singular_values(self) -> Tensor:
        """Logarithms (min(d1, d2),) of the product's singular values, largest first; -inf for none.

        Values far below the largest are lost in the product, but not in the columns, whose factors are
        orthogonal to one another there.
        """
        pairs = min(self.rows, len(self.directions) - self.rows)
        highest = float(self.logs.max())
        scaled = self.directions * (self.logs - highest).exp()
        values = torch.linalg.svdvals(scaled[: self.rows] @ scaled[self.rows :].T)
        exact = values.log() + 2 * highest
        sizes = self.directions[: self.rows].norm(dim=0) * self.directions[self.rows :].norm(dim=0)
        alone = (sizes.log() + 2 * self.logs).sort(descending=True).values[:pairs]
        alone = torch.nn.functional.pad(alone, (0, pairs - len(alone)), value=-torch.inf)
        return torch.where(values > 1e-9 * values[0], exact, torch.minimum(alone, exact[:1].expand(pairs)))


@cache
def rounds(count: int) -> list[tuple[Tensor, Tensor]]:
    """Every pair of `count` columns once, in rounds of disjoint pairs (a round-robin tournament)."""
    circle, found = torch.arange(count + count % 2), []
    for _ in circle[1:]:
        one, other = circle[: len(circle) // 2], circle.flip(0)[: len(circle) // 2]
        first, second = torch.minimum(one, other), torch.maximum(one, other)
        found.append((first[second < count], second[second < count]))
        circle = torch.cat([circle[:1], circle[1:].roll(1)])
    return found


def advance(columns: Tensor, rows: int, early: Tensor, late: Tensor, time: float) -> Tensor:
    """Follow `W' = [[0, -G], [-G^T, 0]] W` for a `time`, with G `early` and `late` at Gauss' points."""
    columns = exponential(columns, rows, time * (_HEAVY * early + _LIGHT * late))
    return exponential(columns, rows, time * (_LIGHT * early + _HEAVY * late))


def exponential(columns: Tensor, rows: int, gradient: Tensor) -> Tensor:
    """`exp([[0, -G], [-G^T, 0]])` times columns, from the singular vectors of the gradient (d1, d2)."""
    left, values, right = torch.linalg.svd(-gradient, full_matrices=False)
    up, down = columns[:rows], columns[rows:]
    along, across = left.T @ up, right @ down
    growing = (along + across) / 2 * values.exp()[:, None]
    shrinking = (along - across) / 2 * (-values).exp()[:, None]
    moved_up = up - left @ along + left @ (growing + shrinking)
    return torch.cat([moved_up, down - right.T @ across + right.T @ (growing - shrinking)])
