"""Gradient flow of full matrices at any initialisation scale, one accepted step at a time.

The factors of a product are columns on logarithmic scales, so that 10**-1000 is a number like any other.
Those above the size `VISIBLE` are active: they make up the products, and their flow is stiff and nonlinear
(`active.py`). All others follow a linear equation in the gradient that the active ones set. A plateau is then
a single step, and the cost of a transition does not depend on alpha.

Gradient flow commutes with rotations of the columns, `W -> W R` for `W = [U; V]`. We keep them orthogonal, so
that a small one keeps its relative accuracy beside a large one. `U^T U - V^T V = W^T J W`, J = diag(I, -I),
never changes, and the sign of a square product's last exponent depends on it: we undo its rounding.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from rankrise.predict._loss import Loss
from rankrise.predict._matrices.active import FactorSpace, Linearised, Step, next_length
from rankrise.predict._paths import Moment, StepTooSmall

VISIBLE = 1e-5  # a column below this size changes a product by less than 1e-10

_SPREAD = 16.0  # the e-foldings by which the columns of a product may drift apart before they are rotated
_BEND = 0.1  # how much the gradient may change within a step of the linear flow, times its length
_GROWTH = 0.7  # the e-foldings by which an active column may grow between two moments that are kept
_OVERSHOOT = 1.5  # the e-foldings by which a column too small to see may grow beyond that within a step
_SMALLEST_STEP = 1e-13
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
        """Sort the columns from number `beginning` on, and make them orthogonal by Jacobi's one-sided
        rotations, which keep graded columns accurate (Demmel & Veselic, SIAM J. Matrix Anal. Appl. 13, 1992).
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
        """Rotate columns from number `count` on against far larger ones, which change below rounding."""
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
        """Give `W^T J W` of sorted, orthogonal columns its value again, from column `beginning` on: to first
        order `w_j + eta J w_i` changes `w_i^T J w_j` by eta, and nothing else.
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
        """Logarithms (min(d1, d2),) of the product's singular values, largest first; -inf for none. Small
        values that are lost in the product are still in the columns.
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


def follow_columns(loss: Loss, columns: list[Columns], until: float, tolerance: float) -> Iterator[Moment]:
    """Follow the flow from `columns` to time `until`, with a `tolerance` for a step's relative error in every
    column. Raises `StepTooSmall` when no step succeeds.
    """
    here = _State(loss, columns)
    if not (here.point.value.isfinite() and here.point.rate.isfinite().all()):
        raise StepTooSmall
    yield here.moment()
    time, size = 0.0, math.inf
    while time < until:
        linear = Linearised(here.space, here.point) if here.space.size else None
        if linear is not None and size == math.inf:
            size = 0.1 / here.pace
        size = min(size, until - time, here.time_to_visible())
        while True:
            if time + size > until * (1 - 1e-12):
                size = until - time
            if size <= max(_SMALLEST_STEP * time, 1e-300):
                raise StepTooSmall
            step, error = here.step(linear, size, tolerance)
            if error <= 1:
                moved, between = here.carry(step, size)
                hidden = [many.logs[rank:] for many, rank in zip(moved, here.ranks, strict=True)]
                if not (torch.cat(hidden) > math.log(VISIBLE) + _OVERSHOOT).any():
                    break
            size *= 0.5 if error <= 1 else next_length(error)
        for many in moved:
            many.rotate()
            many.restore()
        for moment in between:
            yield replace(moment, time=time + moment.time)
        time = until if time + size >= until else time + size
        here = _State(loss, moved)
        yield here.moment(time)
        size = size * next_length(error) if here.space.size else math.inf


class _State:
    """The columns of all products, the visible ones of which come first and set the gradient."""

    def __init__(self, loss: Loss, columns: list[Columns]) -> None:
        self.loss, self.columns = loss, columns
        self.ranks = tuple(int((many.logs > math.log(VISIBLE)).sum()) for many in columns)
        self.space = FactorSpace(loss, self.ranks)
        factors = [many.factors[:, :rank] for many, rank in zip(columns, self.ranks, strict=True)]
        self.point = self.space.here(self.space.pack(factors))
        norms = [float(torch.linalg.matrix_norm(part, 2)) for part in loss.split(self.point.gradient)]
        self._norms, self.pace = norms, max([*norms, 1e-300])

    def time_to_visible(self) -> float:
        """The time after which the next column may become visible, if the gradient stays: a little later."""
        shortest = math.inf
        for many, rank, norm in zip(self.columns, self.ranks, self._norms, strict=True):
            if len(many.logs) > rank:
                missing = math.log(VISIBLE) + 0.1 - float(many.logs[rank:].max())
                shortest = min(shortest, missing / max(norm, 1e-300))
        return shortest

    def step(self, linear: Linearised | None, size: float, tolerance: float) -> tuple[Step | None, float]:
        """A step of the active columns, and its error as a fraction of what is allowed."""
        if linear is None:
            return None, 0.0
        step = linear.step(size, tolerance)
        error = step.error / tolerance
        if error <= 1:
            # The true gradient at the end, and how far it is from what was foreseen.
            missed = self.space.here(step.end).gradient - step.gradient_at(size)
            step = replace(step, remainders=(step.remainders[0], step.remainders[1] + missed))
            if any(len(many.logs) > rank for many, rank in zip(self.columns, self.ranks, strict=True)):
                error = max(error, size * float(missed.norm()) / tolerance)
        return step, error

    def carry(self, step: Step | None, size: float) -> tuple[list[Columns], list[Moment]]:
        """All columns after a step, the inactive ones moved in parts, and the moments within it."""
        loss, space, ranks, gradient = self.loss, self.space, self.ranks, self.point.gradient
        columns, moments = [copy.deepcopy(many) for many in self.columns], list[Moment]()
        growing = space.pace(self.point)
        longest = min(_SPREAD / (2 * self.pace), _GROWTH / max(growing, 1e-300), size)
        value, products = float(self.point.value), space.products(self.point.x)

        def gradient_at(tau: float) -> Tensor:
            return gradient if step is None else step.gradient_at(tau)

        tau, spread = 0.0, 0.0
        while tau < size:
            part = min(longest, size - tau)
            later = gradient_at(tau + part)
            while float((later - gradient).norm()) * part > _BEND and part > 1e-3 * size:
                part /= 2
                later = gradient_at(tau + part)
            if tau + part > size * (1 - 1e-9):
                part = size - tau
            early, late = (loss.split(gradient_at(tau + gauss * part)) for gauss in GAUSS)
            for number, (many, rank) in enumerate(zip(columns, ranks, strict=True)):
                if len(many.logs) > rank:
                    rest = many.directions[:, rank:]
                    rest = advance(rest, many.rows, early[number], late[number], part)
                    many.set_columns(slice(rank, None), rest, many.logs[rank:])
            tau, spread, before, gradient = tau + part, spread + 2 * self.pace * part, gradient, later
            if step is not None:
                x = step.at(tau)
                for many, rank, active in zip(columns, ranks, space.split(x), strict=True):
                    many.set_columns(slice(0, rank), active)
                # The loss falls by G dA; by the trapezoidal rule, until the next end of a step.
                moved = space.products(x)
                value, products = value + float((before + gradient) @ (moved - products)) / 2, moved
            if tau < size:
                if spread > _SPREAD / 2:
                    for many, rank in zip(columns, ranks, strict=True):
                        many.separate(rank)
                        many.rotate(rank)
                        many.restore(rank)
                    spread = 0.0
                moments.append(Moment(tau, value, *_observed(loss, columns, gradient)))
        return columns, moments

    def moment(self, time: float = 0.0) -> Moment:
        """The end of a step."""
        return Moment(time, float(self.point.value), *_observed(self.loss, self.columns, self.point.gradient))


def _observed(loss: Loss, columns: list[Columns], gradient: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """The flat products, their rates and the logarithms of their singular values."""
    products, rates = [], []
    for many, slope in zip(columns, loss.split(gradient), strict=True):
        up, down = many.factors[: many.rows], many.factors[many.rows :]
        products.append((up @ down.T).flatten())
        rates.append(-(slope @ down @ down.T + up @ up.T @ slope).flatten())
    logs = [many.log_singular_values() for many in columns]
    return torch.cat(products), torch.cat(rates), logs
