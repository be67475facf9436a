"""A solved flow of matrices between its moments: cubics in the products and in the logarithms of their
singular values.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.predict._loss import Shape, split_products
from rankrise.predict._moments import Crossing, Moment, crossed

_RESOLVED = 1e-9


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
