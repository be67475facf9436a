"""A solved flow of a diagonal network between its steps: cubics in the exact coordinate z."""

from dataclasses import dataclass

from torch import Tensor

from rankrise.predict._diagonal.coordinates import Coordinates
from rankrise.predict._loss import Shape
from rankrise.predict._moments import Crossing, crossed


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
