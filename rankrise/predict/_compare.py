"""How far the flow is from the predicted stages: Theorem 4.5 as numbers.

At scale alpha the stage at `T_k` comes at `t_k = T_k log(1/alpha) + c_k`, up to exponentially small terms: so
rescaled times are off by a term like 1/log(1/alpha), and slopes of `t_k` between two scales are the limit.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import linear_regression
from typing import overload

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text_tables import text_table
from rankrise.predict._flow import Flow
from rankrise.predict._greedy import Stages


@dataclass(frozen=True)
class StageComparison:
    """One stage as predicted and in the flow.

    `flow_time` is when the flow's product rises to this `rank` above the threshold, inf if never. In the
    `middle` of the plateau, `point_error` is the largest distance of the flow from the stage's point.
    """

    time: float
    flow_time: float
    middle: float
    point_error: float
    product: int
    rank: int

    @property
    def time_error(self) -> float:
        """The distance of `flow_time` from `time`, as a fraction of `time`."""
        return abs(self.flow_time - self.time) / self.time


@dataclass(frozen=True, repr=False)
class FlowComparison:
    """A flow held against the stages whose plateau has its middle within the flow."""

    log_inverse_alpha: float
    threshold: float
    stages: tuple[StageComparison, ...]

    @property
    def largest_time_error(self) -> float:
        """The largest relative error of a stage time; inf where the flow missed a stage."""
        return max((stage.time_error for stage in self.stages), default=math.nan)

    @property
    def largest_point_error(self) -> float:
        """The largest distance of the flow from a point of rest in the middle of its plateau."""
        return max((stage.point_error for stage in self.stages), default=math.nan)

    def __repr__(self) -> str:
        columns = {
            "predicted": [f"{stage.time:.4f}" for stage in self.stages],
            "flow": [f"{stage.flow_time:.4f}" for stage in self.stages],
            "error": [f"{100 * stage.time_error:.2f} %" for stage in self.stages],
        }
        scale = f"alpha = 10^{-self.log_inverse_alpha / math.log(10):.4g}"
        return text_table(f"Flow from {scale} beside the stages:", columns)


@dataclass(frozen=True, repr=False)
class Convergence:
    """How errors fall over initialisation scales, largest first, for the stages that all flows reach.

    Per scale, `time_errors` are the largest relative errors of a stage time, and `point_errors` the largest
    distances from a point of rest. `time_exponent` is 1 where the former fall like 1/log(1/alpha). Per stage,
    `slopes` are the times in the limit, from the two smallest scales, and `slope_errors` their relative
    distances from the prediction; nan for a single flow.
    """

    comparisons: tuple[FlowComparison, ...]
    time_errors: tuple[float, ...]
    point_errors: tuple[float, ...]
    time_exponent: float
    slopes: tuple[float, ...]
    slope_errors: tuple[float, ...]

    def __repr__(self) -> str:
        scales = [one.log_inverse_alpha / math.log(10) for one in self.comparisons]
        columns = {
            "alpha": [f"10^{-scale:.4g}" for scale in scales],
            "largest error of a time": [f"{100 * error:.3g} %" for error in self.time_errors],
            "of a point": [f"{error:.2g}" for error in self.point_errors],
        }
        off = max(self.slope_errors, default=math.nan)
        title = f"{len(self.slopes)} stages; times in the limit are off by {off:.1g}"
        return text_table(f"{title}, and errors fall like 1/log(1/alpha)^{self.time_exponent:.2f}:", columns)


@overload
def compare(stages: Stages, flow: Flow, threshold: float = 1e-3) -> FlowComparison: ...
@overload
def compare(stages: Stages, flow: Sequence[Flow], threshold: float = 1e-3) -> Convergence: ...
def compare(
    stages: Stages, flow: Flow | Sequence[Flow], threshold: float = 1e-3
) -> FlowComparison | Convergence:
    """Compare a flow, or flows at several scales, with the predicted stages (Theorem 4.5).

    >>> import torch
    >>> from rankrise import predict
    >>> target = torch.tensor([1.0, -2.0], dtype=torch.float64)
    >>> loss = lambda a: ((a - target) ** 2).sum() / 2
    >>> start = [1.0, 0.5], [0.2, 1.5]
    >>> flows = [predict.gradient_flow(loss, *start, scale, until=1.5) for scale in (-8, -32, -100)]
    >>> round(predict.compare(predict.greedy(loss, 2), flows).time_exponent, 1)
    1.0
    """
    if isinstance(flow, Flow):
        return _compare_one(stages, flow, threshold)
    ordered = sorted(flow, key=lambda one: one.log_inverse_alpha)
    comparisons = tuple(_compare_one(stages, one, threshold) for one in ordered)
    count = min(len(one.stages) for one in comparisons)
    shared = [replace(one, stages=one.stages[:count]) for one in comparisons]
    predicted = [row.time for row in shared[0].stages]
    time_errors = tuple(one.largest_time_error for one in shared)
    exponent, slopes = math.nan, [math.nan] * count
    if len(shared) > 1:
        if all(0 < error < math.inf for error in time_errors):
            scales = [-math.log(one.log_inverse_alpha) for one in shared]
            exponent = linear_regression(scales, [math.log(error) for error in time_errors]).slope
        first, last = shared[-2:]
        other, unit = first.log_inverse_alpha, last.log_inverse_alpha
        slopes = [
            (late.flow_time * unit - early.flow_time * other) / (unit - other)
            for early, late in zip(first.stages, last.stages, strict=True)
        ]
    return Convergence(
        comparisons=comparisons,
        time_errors=time_errors,
        point_errors=tuple(one.largest_point_error for one in shared),
        time_exponent=exponent,
        slopes=tuple(slopes),
        slope_errors=tuple(abs(slope - time) / time for slope, time in zip(slopes, predicted, strict=True)),
    )


def _compare_one(stages: Stages, flow: Flow, threshold: float) -> FlowComparison:
    if stages.shapes != flow.shapes:
        raise RankriseError(
            f"stages are of shapes {stages.shapes[:4]} and the flow of {flow.shapes[:4]}: pass one loss's."
        )
    last, rows = float(flow.times[-1]), list[StageComparison]()
    # The last plateau lasts as long as the flow if nothing moves any more, else it has no known end.
    times = [stage.time for stage in stages]
    ends = [*times[1:], last if stages.ending == "nothing moves" else min([last, *times[-1:]])]
    for stage, end, flow_time in zip(stages, ends, flow.times_of(stages, threshold), strict=False):
        middle = (stage.time + end) / 2
        if middle > last:
            break
        if end <= stage.time:  # tied with the next stage: there is no plateau between them
            continue
        error = float((flow.products(flow.place_at(middle)) - stage.point).abs().max())
        rows.append(StageComparison(stage.time, flow_time, middle, error, stage.product, stage.rank))
    return FlowComparison(flow.log_inverse_alpha, threshold, tuple(rows))
