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
from rankrise.predict._matrices.flow import MatrixFlow
from rankrise.predict._matrices.greedy import MatrixStages


@dataclass(frozen=True)
class MatrixStageComparison(StageInFlow):
    """One stage as predicted and in the flow.

    `flow_time` is when the singular value number `rank` of `product` rises above the threshold; `ranks` are
    the numbers of singular values above it in the middle of the plateau, product by product.
    """

    product: int
    rank: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class MatrixComparison(AgainstStages[MatrixStageComparison]):
    """A flow held against the predicted stages, for those whose plateau has its middle within the flow."""

    @property
    def rank_grows_by_at_most_one(self) -> bool:
        """Whether, from the middle of each plateau to the next, all ranks together grow by at most one."""
        totals = [0, *(sum(stage.ranks) for stage in self.stages)]
        return all(after - before <= 1 for before, after in pairwise(totals))


@dataclass(frozen=True)
class MatrixConvergence(OverScales[MatrixComparison]):
    """How the errors fall over several initialisation scales, and what the stage times tend to.

    `slopes` are the stage times in the limit, from the two smallest scales, and `extrapolated` those of a
    straight line in 1/log(1/alpha) through all scales; `slope_errors` and `extrapolated_errors` are their
    relative distances from the prediction.
    """

    slopes: tuple[float, ...]
    slope_errors: tuple[float, ...]
    extrapolated: tuple[float, ...]
    extrapolated_errors: tuple[float, ...]

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
@typed
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
    comparisons = tuple(_compare_one(stages, one, threshold) for one in by_scale(flow))
    reached = reached_by_all(comparisons)
    units = torch.tensor([one.log_inverse_alpha for one in reached], dtype=torch.float64)
    design = torch.stack([torch.ones_like(units), 1 / units], 1)
    slopes, lines, predicted = [], [], []
    for row in zip(*(one.stages for one in reached), strict=True):
        times = torch.tensor([stage.flow_time for stage in row], dtype=torch.float64)
        slopes.append(float((times[-1] * units[-1] - times[-2] * units[-2]) / (units[-1] - units[-2])))
        lines.append(float(torch.linalg.lstsq(design, times[:, None]).solution[0, 0]))
        predicted.append(row[0].time)
    largest = tuple(one.largest_time_error for one in reached)
    return MatrixConvergence(
        comparisons=comparisons,
        time_errors=largest,
        point_errors=tuple(one.largest_point_error for one in reached),
        time_exponent=exponent(reached, largest),
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
    rows = []
    for stage, middle in plateaus(stages, stages.ending, float(flow.times[-1])):
        here = flow.at(middle)
        distances = [float((a - b).abs().max()) for a, b in zip(here, stage.points, strict=True)]
        rows.append(
            MatrixStageComparison(
                time=stage.time,
                flow_time=nearest_rise(flow.rises(stage.product, stage.rank - 1, threshold), stage.time),
                middle=middle,
                point_error=max(distances),
                product=stage.product,
                rank=stage.rank,
                ranks=tuple(int((torch.linalg.svdvals(a) > threshold).sum()) for a in here),
            )
        )
    return MatrixComparison(flow.log_inverse_alpha, threshold, tuple(rows))


def _errors(found: list[float], predicted: list[float]) -> tuple[float, ...]:
    return tuple(abs(one - time) / time for one, time in zip(found, predicted, strict=True))
