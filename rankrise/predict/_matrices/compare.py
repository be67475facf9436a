"""How far the flow of full matrices at some initialisation scale is from its predicted stages.

At a finite scale the stage at `T_k` comes at `t_k = T_k log(1/alpha) + c_k`, up to exponentially small terms.
So `t_k / log(1/alpha)` is off by a term that falls like 1/log(1/alpha), and the slope of `t_k` between two
scales is the limit itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import overload

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.predict._matrices.flow import MatrixFlow
from rankrise.predict._matrices.greedy import MatrixStages
from rankrise.predict._theorem import exponent


@dataclass(frozen=True)
class MatrixStageComparison:
    """One stage as predicted and in the flow.

    `flow_time` is when the singular value number `rank` of `product` rises above the threshold (inf if
    never), `time_error` its relative distance from `time`. In the `middle` of the stage's plateau,
    `point_error` is the largest distance of an entry of a product from its point of rest, and `ranks` are the
    numbers of singular values above the threshold.
    """

    product: int
    rank: int
    time: float
    flow_time: float
    time_error: float
    middle: float
    point_error: float
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MatrixComparison:
    """A flow held against the predicted stages, for those whose plateau has its middle within the flow."""

    log_inverse_alpha: float
    threshold: float
    stages: tuple[MatrixStageComparison, ...]

    @property
    def largest_time_error(self) -> float:
        """The largest relative error of a stage time; inf where the flow missed a stage."""
        return max((stage.time_error for stage in self.stages), default=math.nan)

    @property
    def largest_point_error(self) -> float:
        """The largest distance of the flow from a point of rest in the middle of its plateau."""
        return max((stage.point_error for stage in self.stages), default=math.nan)

    @property
    def rank_grows_by_at_most_one(self) -> bool:
        """Whether, from the middle of each plateau to the next, all ranks together grow by at most one."""
        totals = [0, *(sum(stage.ranks) for stage in self.stages)]
        return all(after - before <= 1 for before, after in pairwise(totals))


@dataclass(frozen=True)
class MatrixConvergence:
    """How the errors fall over several initialisation scales, largest scale first.

    `time_exponent` is the slope of log(largest time error) against log(1/log(1/alpha)), 1 where it falls like
    1/log(1/alpha). `slopes` are the stage times in the limit, from the two smallest scales, and
    `extrapolated` those of a straight line in 1/log(1/alpha) through all scales; `slope_errors` and
    `extrapolated_errors` are their relative distances from the prediction. All count only stages that
    all the flows reach.
    """

    comparisons: tuple[MatrixComparison, ...]
    time_errors: tuple[float, ...]
    point_errors: tuple[float, ...]
    time_exponent: float
    slopes: tuple[float, ...]
    slope_errors: tuple[float, ...]
    extrapolated: tuple[float, ...]
    extrapolated_errors: tuple[float, ...]

    @property
    def time_errors_fall(self) -> bool:
        """Whether each smaller scale has a smaller largest error of a stage time."""
        return all(later < earlier for earlier, later in pairwise(self.time_errors))

    @property
    def largest_slope_error(self) -> float:
        """The largest relative error of a slope."""
        return max(self.slope_errors, default=math.nan)


@overload
def compare_matrices(stages: MatrixStages, flow: MatrixFlow, threshold: float = 1e-3) -> MatrixComparison: ...
@overload
def compare_matrices(
    stages: MatrixStages, flow: Sequence[MatrixFlow], threshold: float = 1e-3
) -> MatrixConvergence: ...
def compare_matrices(
    stages: MatrixStages, flow: MatrixFlow | Sequence[MatrixFlow], threshold: float = 1e-3
) -> MatrixComparison | MatrixConvergence:
    """Hold a flow of full matrices, or several at different scales, against the predicted stages.

    One flow gives a `MatrixComparison`, several give a `MatrixConvergence`.

    >>> from rankrise import predict
    >>> network = predict.matrix_sensing(2, samples=20)
    >>> stages = predict.greedy_matrices(network)
    >>> start = predict.random_start(network.shapes)
    >>> flows = [predict.matrix_flow(network, start, scale, 1.2 * stages[-1].time) for scale in (-50, -200)]
    >>> convergence = predict.compare_matrices(stages, flows)
    >>> convergence.time_errors_fall, convergence.largest_slope_error < 1e-4
    (True, True)
    """
    if isinstance(flow, MatrixFlow):
        return _compare_one(stages, flow, threshold)
    flows = sorted(flow, key=lambda one: one.log_inverse_alpha)
    if len({one.log_inverse_alpha for one in flows}) < 2:
        raise RankriseError(
            f"flow holds {len(flows)} flows: pass one flow, or flows of at least two different scales."
        )
    comparisons = tuple(_compare_one(stages, one, threshold) for one in flows)
    shared = min(len(comparison.stages) for comparison in comparisons)
    rows = list(zip(*(one.stages[:shared] for one in comparisons), strict=True))
    units = torch.tensor([one.log_inverse_alpha for one in flows], dtype=torch.float64)
    slopes, lines = [], []
    for row in rows:
        times = torch.tensor([stage.flow_time for stage in row], dtype=torch.float64)
        slopes.append(float((times[-1] * units[-1] - times[-2] * units[-2]) / (units[-1] - units[-2])))
        design = torch.stack([torch.ones_like(units), 1 / units], 1)
        lines.append(float(torch.linalg.lstsq(design, times[:, None]).solution[0, 0]))
    predicted = [row[0].time for row in rows]
    largest = tuple(max((s.time_error for s in one.stages[:shared]), default=math.nan) for one in comparisons)
    points = tuple(max((s.point_error for s in one.stages[:shared]), default=math.nan) for one in comparisons)
    return MatrixConvergence(
        comparisons=comparisons,
        time_errors=largest,
        point_errors=points,
        time_exponent=exponent(units.tolist(), largest),
        slopes=tuple(slopes),
        slope_errors=_errors(slopes, predicted),
        extrapolated=tuple(lines),
        extrapolated_errors=_errors(lines, predicted),
    )


def _compare_one(stages: MatrixStages, flow: MatrixFlow, threshold: float) -> MatrixComparison:
    if stages.shapes != flow.shapes:
        raise RankriseError(
            f"stages have products of {stages.shapes} and flow of {flow.shapes}: pass both of the same loss."
        )
    last = float(flow.times[-1])
    times = [stage.time for stage in stages]
    ends = [*times[1:], last if stages.ending == "nothing moves" else min([last, *times[-1:]])]
    rows = []
    for stage, end in zip(stages, ends, strict=False):
        middle = (stage.time + end) / 2
        if not stage.time < middle <= last:
            break
        # A direction that is dropped and comes back has several stages: each takes the rise nearest to it.
        rises = flow.rises(stage.product, stage.rank - 1, threshold)
        flow_time = min(rises, key=lambda time: abs(time - stage.time), default=math.inf)
        here = flow.at(middle)
        distances = [float((a - b).abs().max()) for a, b in zip(here, stage.points, strict=True)]
        rows.append(
            MatrixStageComparison(
                product=stage.product,
                rank=stage.rank,
                time=stage.time,
                flow_time=flow_time,
                time_error=abs(flow_time - stage.time) / stage.time,
                middle=middle,
                point_error=max(distances),
                ranks=tuple(int((torch.linalg.svdvals(a) > threshold).sum()) for a in here),
            )
        )
    return MatrixComparison(flow.log_inverse_alpha, threshold, tuple(rows))


def _errors(found: list[float], predicted: list[float]) -> tuple[float, ...]:
    return tuple(abs(one - time) / time for one, time in zip(found, predicted, strict=True))
