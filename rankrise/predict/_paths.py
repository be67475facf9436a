"""Solved flows between their moments, and the times at which something passes a threshold.

Between two moments lie cubics: in the exact coordinate z of a diagonal network; for matrices in the products
and in the logarithms of their singular values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankrise.predict._diagonal.coordinates import Coordinates
from rankrise.predict._loss import Shape, split_products
from rankrise.predict._moments import Moment

_RESOLVED = 1e-9


@dataclass(frozen=True)
class Crossing:
    """Singular value number `rank` of a product passed a threshold, upward or downward, at a rescaled time.

    In a diagonal network it is the size of the coordinate `product`, and `rank` is 1.
    """

    time: float
    product: int
    upward: bool
    rank: int = 1

    @property
    def coordinate(self) -> int:
        """The number of the product, which is a coordinate of `a` in a diagonal network."""
        return self.product


def hermite(part: Any, step: Any, ends: tuple[Any, Any], rates: tuple[Any, Any]) -> Any:
    """The cubic through values and rates at both ends of a step, at a `part` of it from 0 to 1.

    >>> [hermite(part, 2.0, (1.0, 5.0), (2.0, 2.0)) for part in (0.0, 0.5, 1.0)]
    [1.0, 3.0, 5.0]
    """
    rest = 1 - part
    return rest * rest * ((1 + 2 * part) * ends[0] + part * step * rates[0]) + part * part * (
        (1 + 2 * rest) * ends[1] - rest * step * rates[1]
    )


def crossed(
    level: Tensor | float, step: Tensor, ends: tuple[Tensor, Tensor], rates: tuple[Tensor, Tensor]
) -> Tensor:
    """The part of each step at which its cubic meets its level, by bisection."""
    left, right = torch.zeros_like(step), torch.ones_like(step)
    for _ in range(60):
        middle = (left + right) / 2
        before = (hermite(middle, step, ends, rates) > level) == (ends[0] > level)
        left, right = torch.where(before, middle, left), torch.where(before, right, middle)
    return right


@dataclass(frozen=True, eq=False)
class DiagonalPath:
    """`places` (n, p), the exact coordinate z at every step, and `rates` (n, p), its derivative in rescaled
    time.
    """

    coordinates: Coordinates
    places: Tensor
    rates: Tensor

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """(1, 1) per coordinate."""
        return ((1, 1),) * self.places.shape[1]

    def product(self, places: Tensor) -> Tensor:
        """`a = u * v` at some z, (..., p)."""
        return self.coordinates.product(places)

    def crossings(self, times: Tensor, threshold: float) -> list[Crossing]:
        """Every time an `|a|` passes `threshold`, in no order."""
        low, high = self.coordinates.level(threshold)
        begun = ((self.places[0] >= high) | (self.places[0] <= low)).nonzero()[:, 0]
        found = [Crossing(0.0, int(i), True) for i in begun]
        for level, side in ((high, 1), (low, -1)):
            above = side * (self.places - level) >= 0
            steps, chosen = (above[1:] != above[:-1]).nonzero(as_tuple=True)
            ends, rates = (
                (column[steps, chosen], column[steps + 1, chosen]) for column in (self.places, self.rates)
            )
            length = times[steps + 1] - times[steps]
            moments = times[steps] + length * crossed(level[chosen], length, ends, rates)
            upward = above[steps + 1, chosen]
            found += map(Crossing, moments.tolist(), chosen.tolist(), upward.tolist())
        return found


@dataclass(frozen=True, eq=False)
class MatrixPath:
    """Flat products `places` (n, size) with their `rates` in rescaled time, and `log_singular_values`, (n,
    min(d1, d2)) per product.

    `conserved` (c, c) per product is `U^T U - V^T V` in units of alpha^2, which never changes, and `drift` is
    the largest relative change of a column by errors before it was restored.
    """

    shapes: tuple[Shape, ...]
    places: Tensor
    rates: Tensor
    log_singular_values: tuple[Tensor, ...]
    conserved: tuple[Tensor, ...]
    drift: float

    @staticmethod
    def of(
        moments: Sequence[Moment], shapes: tuple[Shape, ...], conserved: tuple[Tensor, ...], unit: float
    ) -> "MatrixPath":
        """The path through moments, in times of `unit`."""
        logs = zip(*(moment.log_singular_values for moment in moments), strict=True)
        return MatrixPath(
            shapes=shapes,
            places=torch.stack([moment.place for moment in moments]).cpu(),
            rates=torch.stack([moment.rate * unit for moment in moments]).cpu(),
            log_singular_values=tuple(torch.stack(of_product).cpu() for of_product in logs),
            conserved=conserved,
            drift=max(moment.drift for moment in moments),
        )

    def product(self, places: Tensor) -> Tensor:
        """The flat products at some places, which are the products themselves."""
        return places

    def crossings(self, times: Tensor, threshold: float) -> list[Crossing]:
        """Every time a singular value passes `threshold`, in no order."""
        found, level = [], math.log(threshold)
        for product, logs in enumerate(self.log_singular_values):
            above = logs > level
            found += [Crossing(0.0, product, True, int(k) + 1) for k in above[0].nonzero()[:, 0]]
            for before, k in (above[1:] != above[:-1]).nonzero().tolist():
                step, ends = times[before + 1] - times[before], (logs[before, k], logs[before + 1, k])
                part = torch.ones(())
                if ends[0].isfinite() and ends[1].isfinite():
                    early, late = (self._log_rate(product, k, moment) for moment in (before, before + 1))
                    if early is None or late is None:  # Growth is a line in the logarithm
                        early = late = (ends[1] - ends[0]) / step
                    part = crossed(level, step, ends, (early, late))
                time = float(times[before] + part * step)
                found.append(Crossing(time, product, bool(above[before + 1, k]), k + 1))
        return found

    def _log_rate(self, product: int, k: int, moment: int) -> Tensor | None:
        """The rate of the logarithm of a singular value, None where the product does not resolve it."""
        flat = self.places[moment], self.rates[moment]
        a, rate = (split_products(one, self.shapes)[product] for one in flat)
        left, values, right = torch.linalg.svd(a, full_matrices=False)
        return left[:, k] @ rate @ right[k] / values[k] if values[k] > _RESOLVED * values[0] else None
