"""Which steps are measured: often the ranks and leading singular values, seldom the full spectra."""

import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rankrise.foundations.errors import RankriseError


def _whole(number: Any, name: str, least: int) -> int:
    try:
        whole = operator.index(number)
    except TypeError:
        whole = least - 1
    if whole < least:
        raise RankriseError(
            f"{name} is {number!r}: pass a whole number of {least} or more, a list of steps, or "
            "Spaced(points per doubling)."
        )
    return whole


@dataclass(frozen=True)
class Spaced:
    """Steps that are dense early and logarithmic later: `per_doubling` of them while the step doubles.

    Every step up to `2 * per_doubling`, then every second one until the step has doubled, then every fourth,
    and so on. Stages come on a logarithmic clock, and whether a step is due depends on nothing else.

    >>> [step for step in range(100) if step in Spaced(4)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96]
    """

    per_doubling: int

    def __post_init__(self) -> None:
        _whole(self.per_doubling, "per_doubling", least=1)

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
    >>> few = Schedule(seldom=[1000, 5000])
    >>> few.due(1000), few.full(1000), few.due(33), few.due(34)
    (True, True, False, True)
    """

    often: int | Sequence[int] | Spaced = Spaced(16)
    seldom: int | Sequence[int] | Spaced = Spaced(2)

    def __post_init__(self) -> None:
        for name in ("often", "seldom"):
            asked = getattr(self, name)
            if isinstance(asked, Sequence) and not isinstance(asked, str):
                steps = sorted({_whole(step, name, least=0) for step in asked})
                object.__setattr__(self, name, tuple(steps))
                object.__setattr__(self, f"_{name}", frozenset(steps))
            elif not isinstance(asked, Spaced):
                object.__setattr__(self, name, _whole(asked, name, least=1))

    def due(self, step: int) -> bool:
        """Whether anything is measured at this step."""
        return self._is_due(step, "often") or self.full(step)

    def full(self, step: int) -> bool:
        """Whether the full spectra are measured at this step."""
        return self._is_due(step, "seldom")

    def to_dict(self) -> dict[str, Any]:
        """For run.json: a number, a list of steps, or {"per_doubling": n}."""
        return {
            name: asdict(asked) if isinstance(asked := getattr(self, name), Spaced) else asked
            for name in ("often", "seldom")
        }

    def _is_due(self, step: int, name: str) -> bool:
        asked = getattr(self, name)
        if isinstance(asked, int):
            return step % asked == 0
        return step in (asked if isinstance(asked, Spaced) else getattr(self, f"_{name}"))


def step_number(step: object) -> int:
    """A step as the record holds it."""
    try:
        number = -1 if isinstance(step, bool) else operator.index(step)  # type: ignore[arg-type]
    except TypeError:
        number = -1
    if not 0 <= number < 2**63:
        raise RankriseError(
            f"step is {step!r:.40}: pass a whole number of 0 or more that counts on over epochs."
        )
    return number
