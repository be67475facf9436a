"""What the flows of diagonal networks and of matrices share: how they end, and what lies between moments."""

from dataclasses import dataclass
from typing import Any, Literal

Ending = Literal["reached", "max steps", "not finite"]


class StepTooSmall(Exception):
    """The step size fell to nothing: the flow leaves every bound, or the loss is not smooth there."""


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
