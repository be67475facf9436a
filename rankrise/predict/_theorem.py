"""Theorem 4.5 as numbers: how far the flow at some initialisation scale is from Algorithm 1's limit."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.predict._flow import Flow
from rankrise.predict._stages import Stages


@dataclass(frozen=True)
class StageComparison:
    """One stage in the limit and in the flow.

    `flow_time` is when the flow's coordinate crosses the threshold (inf if never), `time_error` its distance
    from `time` as a fraction of `time`; `middle` is the middle of the stage's plateau and `point_error` the
    largest distance there between the flow and the stationary point; `grown` counts the coordinates active in
    the middle that were not so in the middle before.
    """

    coordinate: int
    time: float
    flow_time: float
    time_error: float
    middle: float
    point_error: float
    grown: int


@dataclass(frozen=True)
class FlowComparison:
    """A flow held against Algorithm 1, for the stages whose plateau has its middle within the flow."""

    log_inverse_alpha: float
    threshold: float
    stages: tuple[StageComparison, ...]

    @property
    def largest_time_error(self) -> float:
        """The largest relative error of a stage time; inf where the flow missed a stage."""
        return max((stage.time_error for stage in self.stages), default=math.nan)

    @property
    def largest_point_error(self) -> float:
        """The largest distance of the flow from a stationary point in the middle of its plateau."""
        return max((stage.point_error for stage in self.stages), default=math.nan)

    @property
    def support_grows_by_at_most_one(self) -> bool:
        """Whether, from the middle of each plateau to the next, at most one coordinate became active."""
        return all(stage.grown <= 1 for stage in self.stages)


@dataclass(frozen=True)
class Convergence:
    """How the errors fall over several initialisation scales, largest scale first.

    `time_exponent` is the slope of log(largest time error) against log(1/log(1/alpha)): 1 where the error
    falls like 1/log(1/alpha). `point_exponent` is the same for the plateau points. Errors count only stages
    that all the flows reach.
    """

    comparisons: tuple[FlowComparison, ...]
    time_errors: tuple[float, ...]
    point_errors: tuple[float, ...]
    time_exponent: float
    point_exponent: float

    @property
    def time_errors_fall(self) -> bool:
        """Whether each smaller scale has a smaller largest error of a stage time."""
        return all(
            later < earlier for earlier, later in zip(self.time_errors, self.time_errors[1:], strict=False)
        )


@overload
def compare(stages: Stages, flow: Flow, threshold: float = 1e-3) -> FlowComparison: ...
@overload
def compare(stages: Stages, flow: Sequence[Flow], threshold: float = 1e-3) -> Convergence: ...
def compare(
    stages: Stages, flow: Flow | Sequence[Flow], threshold: float = 1e-3
) -> FlowComparison | Convergence:
    """Hold a flow, or several at different scales, against Algorithm 1's stages (Theorem 4.5).

    One flow gives a `FlowComparison`, several give a `Convergence`.

    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> start = [1.0, 0.5], [0.2, 1.5]
    >>> flows = [predict.gradient_flow(loss, *start, scale, until=1.5) for scale in (-8, -32, -100)]
    >>> convergence = predict.compare(predict.greedy(loss, 2), flows)
    >>> convergence.time_errors_fall, round(convergence.time_exponent, 1)
    (True, 1.0)
    """
    if isinstance(flow, Flow):
        return _compare_one(stages, flow, threshold)
    flows = sorted(flow, key=lambda one: one.log_inverse_alpha)
    if len({one.log_inverse_alpha for one in flows}) < 2:
        raise RankriseError(
            f"flow holds {len(flows)} flows: pass one flow, or flows of at least two different scales."
        )
    comparisons = tuple(_compare_one(stages, one, threshold) for one in flows)
    shared = min(len(comparison.stages) for comparison in comparisons)
    times = tuple(max((s.time_error for s in one.stages[:shared]), default=math.nan) for one in comparisons)
    points = tuple(max((s.point_error for s in one.stages[:shared]), default=math.nan) for one in comparisons)
    units = [one.log_inverse_alpha for one in flows]
    return Convergence(comparisons, times, points, exponent(units, times), exponent(units, points))


def _compare_one(stages: Stages, flow: Flow, threshold: float) -> FlowComparison:
    size = flow.places.shape[1]
    if len(stages) and len(stages[0].point) != size:
        raise RankriseError(
            f"stages have {len(stages[0].point)} coordinates and flow has {size}: pass both of the same loss."
        )
    last = float(flow.times[-1])
    rises = flow.rises(threshold)
    rows: list[StageComparison] = []
    active = flow.at(0.0).abs() > threshold
    times = [stage.time for stage in stages]
    # The last plateau ends with the flow, or with what Algorithm 1 was asked for.
    ends = [*times[1:], last if stages.ending == "nothing moves" else min([last, *times[-1:]])]
    for stage, end in zip(stages, ends, strict=False):
        middle = (stage.time + end) / 2
        if not stage.time < middle <= last:
            break
        # A coordinate that leaves and comes back has several stages: each takes the rise nearest to it.
        flow_time = min(rises.get(stage.coordinate, [math.inf]), key=lambda time: abs(time - stage.time))
        here = flow.at(middle)
        now_active = here.abs() > threshold
        rows.append(
            StageComparison(
                coordinate=stage.coordinate,
                time=stage.time,
                flow_time=flow_time,
                time_error=abs(flow_time - stage.time) / stage.time,
                middle=middle,
                point_error=float((here - stage.point).abs().max()),
                grown=int((now_active & ~active).sum()),
            )
        )
        active = now_active
    return FlowComparison(flow.log_inverse_alpha, threshold, tuple(rows))


def exponent(units: Sequence[float], errors: Sequence[float]) -> float:
    """The least-squares slope of log(error) against log(1/unit)."""
    if not all(0 < error < math.inf for error in errors):
        return math.nan
    x = -torch.tensor(units, dtype=torch.float64).log()
    y = torch.tensor(errors, dtype=torch.float64).log()
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
