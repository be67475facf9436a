"""Flows held against stages: what diagonal weights (Theorem 4.5) and full matrices have in common."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import torch

from rankrise.foundations.errors import RankriseError


@dataclass(frozen=True)
class StageInFlow:
    """A stage's `time`, and `flow_time`, when the flow comes to it (inf if never). In the `middle` of its
    plateau, `point_error` is the largest distance of the flow from the stage's point of rest.
    """

    time: float
    flow_time: float
    middle: float
    point_error: float

    @property
    def time_error(self) -> float:
        """The distance of `flow_time` from `time`, as a fraction of `time`."""
        return abs(self.flow_time - self.time) / self.time


class OfScale(Protocol):
    """A flow, or what came of it, from the initialisation scale alpha."""

    @property
    def log_inverse_alpha(self) -> float: ...


class Timed(Protocol):
    """A stage, of coordinates or of matrices."""

    @property
    def time(self) -> float: ...


StageT = TypeVar("StageT", bound=Timed)
Held = TypeVar("Held", bound=StageInFlow)
Scaled = TypeVar("Scaled", bound=OfScale)


@dataclass(frozen=True)
class AgainstStages(Generic[Held]):
    """A flow held against its stages, for those whose plateau has its middle within the flow."""

    log_inverse_alpha: float
    threshold: float
    stages: tuple[Held, ...]

    @property
    def largest_time_error(self) -> float:
        """The largest relative error of a stage time; inf where the flow missed a stage."""
        return max((stage.time_error for stage in self.stages), default=math.nan)

    @property
    def largest_point_error(self) -> float:
        """The largest distance of the flow from a point of rest in the middle of its plateau."""
        return max((stage.point_error for stage in self.stages), default=math.nan)


@dataclass(frozen=True)
class OverScales(Generic[Scaled]):
    """How the largest errors fall over several initialisation scales, largest scale first.

    `time_exponent` is the slope of log(largest time error) against log(1/log(1/alpha)): 1 where the error
    falls like 1/log(1/alpha). Errors count only stages that all the flows reach.
    """

    comparisons: tuple[Scaled, ...]
    time_errors: tuple[float, ...]
    point_errors: tuple[float, ...]
    time_exponent: float

    @property
    def time_errors_fall(self) -> bool:
        """Whether each smaller scale has a smaller largest error of a stage time."""
        return all(later < earlier for earlier, later in pairwise(self.time_errors))


def by_scale(flows: Iterable[Scaled]) -> list[Scaled]:
    """Flows from the largest scale to the smallest; those of one scale say nothing of the limit."""
    ordered = sorted(flows, key=lambda one: one.log_inverse_alpha)
    if len({one.log_inverse_alpha for one in ordered}) < 2:
        raise RankriseError(
            f"flow holds {len(ordered)} flows: pass one flow, or flows of at least two different scales."
        )
    return ordered


def plateaus(stages: Sequence[StageT], ending: str, last: float) -> Iterator[tuple[StageT, float]]:
    """Each stage with the middle of its plateau, as long as that is within a flow that ends at `last`.

    The last plateau ends with the flow if the stages' `ending` says so, else where it begins.
    """
    times = [stage.time for stage in stages]
    ends = [*times[1:], last if ending == "nothing moves" else min([last, *times[-1:]])]
    for stage, end in zip(stages, ends, strict=False):
        middle = (stage.time + end) / 2
        if not stage.time < middle <= last:
            return
        yield stage, middle


def nearest_rise(rises: Iterable[float], time: float) -> float:
    """Of what leaves and comes back, and so has several stages, the rise that is nearest to one of them."""
    return min(rises, key=lambda rise: abs(rise - time), default=math.inf)


def reached_by_all(comparisons: Sequence[AgainstStages[Held]]) -> list[AgainstStages[Held]]:
    """The comparisons of the stages that all of several flows reach."""
    shared = min(len(one.stages) for one in comparisons)
    return [AgainstStages(one.log_inverse_alpha, one.threshold, one.stages[:shared]) for one in comparisons]


def exponent(comparisons: Sequence[OfScale], errors: Sequence[float]) -> float:
    """The least-squares slope of log(error) against log(1/log(1/alpha))."""
    if not all(0 < error < math.inf for error in errors):
        return math.nan
    x = -torch.tensor([one.log_inverse_alpha for one in comparisons], dtype=torch.float64).log()
    y = torch.tensor(errors, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
