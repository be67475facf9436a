"""Which steps are measured: often the ranks and leading singular values, seldom the full spectra."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from rankrise.foundations.errors import RankriseError


@dataclass(frozen=True)
class Spaced:
    """Every step at first, then `per_doubling` of them while the step doubles: stages come on a logarithmic
    clock.

    >>> [step for step in range(100) if step in Spaced(4)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96]
    """

    per_doubling: int

    def __contains__(self, step: int) -> bool:
        doublings = (step // self.per_doubling).bit_length() - 1
        return doublings < 1 or step % (1 << doublings) == 0


@dataclass(frozen=True)
class Schedule:
    """When to measure: `often` stable ranks and leading singular values, `seldom` all singular values too.

    Each is a number n (every n-th step), a list of steps, or `Spaced(points per doubling of the step)`, the
    default. Where a full spectrum is due, the ranks are due too.

    >>> paper = Schedule(often=20, seldom=100)
    >>> [step for step in range(120) if paper.due(step)], [step for step in range(120) if paper.full(step)]
    ([0, 20, 40, 60, 80, 100], [0, 100])
    """

    often: int | Sequence[int] | Spaced = Spaced(16)
    seldom: int | Sequence[int] | Spaced = Spaced(2)

    def __post_init__(self) -> None:
        for name in ("often", "seldom"):
            asked = getattr(self, name)
            if isinstance(asked, Sequence):
                object.__setattr__(self, name, tuple(sorted(set(asked))))
            elif (asked.per_doubling if isinstance(asked, Spaced) else asked) < 1:
                raise RankriseError(f"{name} is {asked}: pass 1 or more, a list of steps, or Spaced(n).")

    def due(self, step: int) -> bool:
        """Whether anything is measured at this step."""
        return _is_due(step, self.often) or self.full(step)

    def full(self, step: int) -> bool:
        """Whether the full spectra are measured at this step."""
        return _is_due(step, self.seldom)


def _is_due(step: int, asked: int | Sequence[int] | Spaced) -> bool:
    if isinstance(asked, Sequence):
        place = bisect_left(asked, step)
        return asked[place : place + 1] == (step,)
    return step % asked == 0 if isinstance(asked, int) else step in asked
