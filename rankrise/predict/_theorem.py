"""Theorem 4.5 as numbers: how far the flow at some initialisation scale is from Algorithm 1's limit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import overload

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.predict._against_stages import (
    AgainstStages,
    OverScales,
    StageInFlow,
    by_scale,
    exponent,
    nearest_rise,
    plateaus,
    reached_by_all,
)
from rankrise.predict._flow import Flow
from rankrise.predict._stages import Stages


@dataclass(frozen=True)
class StageComparison(StageInFlow):
    """One stage in the limit and in the flow.

    `flow_time` is when the flow's `coordinate` crosses the threshold; `grown` counts the coordinates active
    in the middle of the plateau that were not so in the middle before.
    """

    coordinate: int
    grown: int


@dataclass(frozen=True)
class FlowComparison(AgainstStages[StageComparison]):
    """A flow held against Algorithm 1, for the stages whose plateau has its middle within the flow."""

    @property
    def support_grows_by_at_most_one(self) -> bool:
        """Whether, from the middle of each plateau to the next, at most one coordinate became active."""
        return all(stage.grown <= 1 for stage in self.stages)


@dataclass(frozen=True)
class Convergence(OverScales[FlowComparison]):
    """How the errors fall over several scales; `point_exponent` is the exponent of the plateaus' points."""

    point_exponent: float


@overload
def compare(stages: Stages, flow: Flow, threshold: float = 1e-3) -> FlowComparison: ...
@overload
def compare(stages: Stages, flow: Sequence[Flow], threshold: float = 1e-3) -> Convergence: ...
@typed
def compare(
    stages: Stages, flow: Flow | Sequence[Flow], threshold: float = 1e-3
) -> FlowComparison | Convergence:
    """Hold a flow, or several at different scales, against Algorithm 1's stages (Theorem 4.5).

    One flow gives a `FlowComparison`, several give a `Convergence`.

    >>> import torch
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
    comparisons = tuple(_compare_one(stages, one, threshold) for one in by_scale(flow))
    reached = reached_by_all(comparisons)
    times = tuple(one.largest_time_error for one in reached)
    points = tuple(one.largest_point_error for one in reached)
    return Convergence(comparisons, times, points, exponent(reached, times), exponent(reached, points))


def _compare_one(stages: Stages, flow: Flow, threshold: float) -> FlowComparison:
    size = flow.places.shape[1]
    if len(stages) and len(stages[0].point) != size:
        raise RankriseError(
            f"stages have {len(stages[0].point)} coordinates and flow has {size}: pass both of the same loss."
        )
    rises = flow.rises(threshold)
    rows: list[StageComparison] = []
    active = flow.at(0.0).abs() > threshold
    for stage, middle in plateaus(stages, stages.ending, float(flow.times[-1])):
        here = flow.at(middle)
        now_active = here.abs() > threshold
        rows.append(
            StageComparison(
                time=stage.time,
                flow_time=nearest_rise(rises.get(stage.coordinate, ()), stage.time),
                middle=middle,
                point_error=float((here - stage.point).abs().max()),
                coordinate=stage.coordinate,
                grown=int((now_active & ~active).sum()),
            )
        )
        active = now_active
    return FlowComparison(flow.log_inverse_alpha, threshold, tuple(rows))
