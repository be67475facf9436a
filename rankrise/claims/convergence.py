"""Claim 1: as alpha falls, the flow's stages converge to Algorithm 1's, in time and place (Theorem 4.5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from rankrise import predict
from rankrise.claims.claim import TOLERANCES, Measure, at_least, at_most, by_each_choice, noted, worst_seed
from rankrise.foundations.counted import counted
from rankrise.runs import NotRecorded, ToyRun
from rankrise.runs.toy.curves import ACTIVE

TIMES_CONSIDERED = 0.9
"""Stages after this fraction of the run are left out: at a finite scale they may come after its end."""

LAST_ERROR = 0.02
EXPONENT = 0.5


@dataclass(frozen=True)
class _Found:
    """What was measured on a seed: on the two smallest scales, or the smallest (`last_`)."""

    limit: float
    times_exponent: float | None
    curve_exponent: float | None
    excess: float | None
    last_error: float
    last_distance: float
    ties: int
    resolved: int
    stages: int


def convergence(run: ToyRun) -> list[Measure]:
    """Theorem 4.5 on the two smallest scales of a run, the worst of its seeds."""
    if len(run.settings.alphas) < 2:
        raise NotRecorded("the run has one initialisation scale, and a trend takes two.")
    found = [_found(run, seed) for seed in run.settings.seeds]
    scales = " and ".join(run.settings.alphas[-2:])
    beside = zip(*map(_beside, found), strict=True)
    return [
        *by_each_choice(partial(_deciding, found, scales), TOLERANCES),
        *(worst_seed(same) for same in beside),
    ]


def _found(run: ToyRun, seed: int) -> _Found:
    stages = run.stages(seed)
    larger, smaller = (run.flow(seed, alpha) for alpha in run.settings.alphas[-2:])
    pairs = [
        (before, after)
        for before, after in zip(
            predict.compare(stages, larger).stages, predict.compare(stages, smaller).stages, strict=False
        )
        if after.time <= TIMES_CONSIDERED * run.settings.until
    ]
    if not pairs:
        raise NotRecorded(
            f"Algorithm 1 has no plateau that ends before rescaled time {run.settings.until:g}; raise until."
        )
    ratio = smaller.log_inverse_alpha / larger.log_inverse_alpha
    limits = [
        (ratio * after.flow_time - before.flow_time) / (ratio - 1) / after.time - 1 for before, after in pairs
    ]
    errors = [median(stage.time_error for stage in side) for side in zip(*pairs, strict=True)]
    distances = [staircase_distance(stages, flow, run.settings.until) for flow in (larger, smaller)]
    excess, resolved = support_excess(stages, smaller)
    return _Found(
        limit=max(abs(limit) if math.isfinite(limit) else math.inf for limit in limits),
        times_exponent=exponent(errors, ratio),
        curve_exponent=exponent(distances, ratio),
        excess=excess,
        last_error=errors[1],
        last_distance=distances[1],
        ties=len(stages.ties),
        resolved=resolved,
        stages=len(stages),
    )


def _deciding(found: Sequence[_Found], scales: str, tolerance: float = 1.0) -> list[Measure]:
    """The worst of the seeds; the tolerance widens what is allowed beside the theory's 0 and 1."""

    def of(one: _Found) -> list[Measure]:
        least = 1 - tolerance * (1 - EXPONENT)
        return [
            at_most(
                "largest error of a stage time, extrapolated to alpha = 0, as a fraction of that time",
                one.limit,
                tolerance * LAST_ERROR,
                f"errors of the form c/log(1/alpha) vanish on the line through {scales}; "
                "what is left is of second order, below 2 %",
            ),
            at_least(
                "p, where the error of stage times falls like 1/log(1/alpha)^p",
                one.times_exponent,
                least,
                "1 in theory; 0 without convergence; half-way between",
            ),
            at_least(
                "p, where the distance of the flow from Algorithm 1's staircase falls like 1/log(1/alpha)^p",
                one.curve_exponent,
                least,
                "the same, for the mean distance from the plateau points over rescaled time",
            ),
            at_most(
                "coordinates learned beyond one per stage",
                one.excess,
                0,
                "Theorem 4.5: at most one per stage; counted midway through the plateaus that the flow "
                "resolves",
            ),
        ]

    return [worst_seed(same) for same in zip(*map(of, found), strict=True)]


def _beside(found: _Found) -> list[Measure]:
    return [
        noted(
            "median error of a stage time at the smallest alpha, as a fraction of that time",
            found.last_error,
            "",
        ),
        noted(
            "mean distance of the flow from the staircase at the smallest alpha, as a fraction of its height",
            found.last_distance,
            "",
        ),
        noted(
            "stages tied with another coordinate",
            float(found.ties),
            "the theorem assumes none; the heads of a layer start tied, being exchangeable",
        ),
        noted(
            "plateaus resolved at the smallest alpha",
            float(found.resolved),
            f"of {counted(found.stages, 'stage')}",
        ),
    ]


def exponent(errors: list[float], ratio: float) -> float | None:
    """The power of 1/log(1/alpha) by which an error falls where that becomes `ratio` times smaller.

    >>> exponent([0.2, 0.1], ratio=2.0)
    1.0
    """
    larger, smaller = errors
    if not math.isfinite(smaller):
        return 0.0
    if smaller <= 0 or not 0 < larger < math.inf:
        return None
    return math.log(larger / smaller) / math.log(ratio)


def staircase_distance(stages: predict.Stages, flow: predict.Flow, until: float) -> float:
    """The mean over rescaled time of |flow - staircase|, relative to |staircase| (Euclidean norms)."""
    times = torch.linspace(0, 1, 4001, dtype=torch.float64) * min(until, float(flow.times[-1]))
    starts = torch.tensor([stage.time for stage in stages], dtype=torch.float64)
    points = torch.stack([torch.zeros_like(stages[0].point), *(stage.point for stage in stages)])
    staircase = points[torch.searchsorted(starts, times)]
    return float((flow.at(times) - staircase).norm(dim=1).sum() / staircase.norm(dim=1).sum())


def support_excess(stages: predict.Stages, flow: predict.Flow) -> tuple[float | None, int]:
    """By how many coordinates the flow's support outgrew one per stage, and how many plateaus it resolves.

    A plateau is resolved where it lasts at least twice as long as the flow is ever off a stage time: the
    theorem speaks of a time within a plateau as alpha falls, and a shorter one is, at this alpha, none yet.
    """
    rows = predict.compare(stages, flow).stages
    off = max(abs(row.flow_time - row.time) for row in rows)
    resolved = [number for number, row in enumerate(rows) if 2 * (row.middle - row.time) >= 2 * off]
    if not resolved:
        return None, 0
    excess, before, active = 0, -1, set[int]()
    for number in resolved:
        now = set((flow.at(rows[number].middle).abs() > ACTIVE).nonzero()[:, 0].tolist())
        excess = max(excess, len(now - active) - (number - before))
        before, active = number, now
    return float(excess), len(resolved)
