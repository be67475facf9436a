"""How far the flow at some initialisation scale is from the predicted stages: Theorem 4.5 as numbers.

At a finite scale the stage at `T_k` comes at `t_k = T_k log(1/alpha) + c_k`, up to exponentially small terms.
So `t_k / log(1/alpha)` is off by a term that falls like 1/log(1/alpha), and the slope of `t_k` between two
scales is the limit itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import linear_regression
from typing import overload

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text_tables import text_table
from rankrise.predict._flow import Flow
from rankrise.predict._loss import split_products
from rankrise.predict._stages import Stages


@dataclass(frozen=True)
class StageComparison:
    """One stage as predicted and in the flow.

    `flow_time` is when the flow's product (a coordinate, in a diagonal network) rises to this `rank` above
    the threshold, inf if never. In the `middle` of the plateau, `point_error` is the largest distance of the
    flow from the stage's point, and `grown` counts the directions that became active since the last middle.
    """

    time: float
    flow_time: float
    middle: float
    point_error: float
    product: int
    rank: int
    grown: int

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

    @property
    def support_grows_by_at_most_one(self) -> bool:
        """Whether, from the middle of each plateau to the next, at most one direction became active."""
        return all(stage.grown <= 1 for stage in self.stages)

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
    """How the largest errors fall over several initialisation scales, largest scale first.

    Errors count only stages that all the flows reach. `time_exponent` is 1 where they fall like
    1/log(1/alpha). `slopes` are the stage times in the limit, from the two smallest scales. A single flow has
    neither: they are nan.
    """

    comparisons: tuple[FlowComparison, ...]

    @property
    def time_errors(self) -> tuple[float, ...]:
        """The largest relative error of a stage time, per scale."""
        return tuple(one.largest_time_error for one in self._shared)

    @property
    def point_errors(self) -> tuple[float, ...]:
        """The largest distance from a point of rest in the middle of its plateau, per scale."""
        return tuple(one.largest_point_error for one in self._shared)

    @property
    def time_exponent(self) -> float:
        """The least-squares slope of log(largest error of a time) against log(1/log(1/alpha))."""
        errors = self.time_errors
        if len(errors) < 2 or not all(0 < error < math.inf for error in errors):
            return math.nan
        scales = [-math.log(one.log_inverse_alpha) for one in self.comparisons]
        return linear_regression(scales, [math.log(error) for error in errors]).slope

    @property
    def slopes(self) -> tuple[float, ...]:
        """The stage times in the limit."""
        last = self._shared[-1]
        if len(self._shared) == 1:
            return (math.nan,) * len(last.stages)
        first, unit, other = self._shared[-2], last.log_inverse_alpha, self._shared[-2].log_inverse_alpha
        return tuple(
            (late.flow_time * unit - early.flow_time * other) / (unit - other)
            for early, late in zip(first.stages, last.stages, strict=True)
        )

    @property
    def slope_errors(self) -> tuple[float, ...]:
        """Their distances from the prediction, as a fraction of it."""
        pairs = zip(self.slopes, self._shared[-1].stages, strict=True)
        return tuple(abs(slope - stage.time) / stage.time for slope, stage in pairs)

    @property
    def time_errors_fall(self) -> bool:
        """Whether each smaller scale has a smaller largest error of a stage time."""
        return all(later < earlier for earlier, later in pairwise(self.time_errors))

    @property
    def largest_slope_error(self) -> float:
        """The largest relative error of a slope."""
        return max(self.slope_errors, default=math.nan)

    def __repr__(self) -> str:
        scales = [one.log_inverse_alpha / math.log(10) for one in self.comparisons]
        columns = {
            "alpha": [f"10^{-scale:.4g}" for scale in scales],
            "largest error of a time": [f"{100 * error:.3g} %" for error in self.time_errors],
            "of a point": [f"{error:.2g}" for error in self.point_errors],
        }
        title = f"{len(self.slopes)} stages; times in the limit are off by {self.largest_slope_error:.1g}"
        return text_table(f"{title}, and errors fall like 1/log(1/alpha)^{self.time_exponent:.2f}:", columns)

    @property
    def _shared(self) -> list[FlowComparison]:
        """The comparisons of the stages that all flows reach."""
        count = min(len(one.stages) for one in self.comparisons)
        return [replace(one, stages=one.stages[:count]) for one in self.comparisons]


@overload
def compare(stages: Stages, flow: Flow, threshold: float = 1e-3) -> FlowComparison: ...
@overload
def compare(stages: Stages, flow: Sequence[Flow], threshold: float = 1e-3) -> Convergence: ...
def compare(
    stages: Stages, flow: Flow | Sequence[Flow], threshold: float = 1e-3
) -> FlowComparison | Convergence:
    """Hold a flow, or flows at different scales, against the predicted stages (Theorem 4.5).

    One flow gives a `FlowComparison`, a list gives a `Convergence`.

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
    ordered = sorted(flow, key=lambda one: one.log_inverse_alpha)
    if not ordered:
        raise RankriseError("flow is an empty list: pass a flow, or several at different scales.")
    if len({one.log_inverse_alpha for one in ordered}) < len(ordered):
        raise RankriseError("two of the flows start from the same scale: pass flows of different scales.")
    return Convergence(tuple(_compare_one(stages, one, threshold) for one in ordered))


def _compare_one(stages: Stages, flow: Flow, threshold: float) -> FlowComparison:
    if stages.shapes != flow.shapes:
        raise RankriseError(
            f"stages are of shapes {stages.shapes[:4]} and the flow of {flow.shapes[:4]}: pass one loss's."
        )
    rises, last = flow.rises(threshold), float(flow.times[-1])
    rows, ranks = list[StageComparison](), _ranks(flow.values[0], flow, threshold)
    # The last plateau lasts as long as the flow if nothing moves any more, else it has no known end.
    times = [stage.time for stage in stages]
    ends = [*times[1:], last if stages.ending == "nothing moves" else min([last, *times[-1:]])]
    for stage, end in zip(stages, ends, strict=False):
        middle = (stage.time + end) / 2
        if not stage.time < middle <= last:
            break
        here = flow.path.product(flow.place_at(middle))
        before, ranks = ranks, _ranks(here, flow, threshold)
        # A product that loses a direction and regains it has several rises.
        risen = rises.get((stage.product, stage.rank), ())
        rows.append(
            StageComparison(
                time=stage.time,
                flow_time=min(risen, key=lambda rise: abs(rise - stage.time), default=math.inf),
                middle=middle,
                point_error=float((here - stage.point.to(here.device)).abs().max()),
                product=stage.product,
                rank=stage.rank,
                grown=int((ranks - before).clamp(min=0).sum()),
            )
        )
    return FlowComparison(flow.log_inverse_alpha, threshold, tuple(rows))


def _ranks(flat: Tensor, flow: Flow, threshold: float) -> Tensor:
    """The number of singular values above the threshold, per product."""
    if flow.diagonal:
        return (flat.abs() > threshold).int()
    products = split_products(flat, flow.shapes)
    return torch.stack([(torch.linalg.svdvals(product) > threshold).sum() for product in products])
