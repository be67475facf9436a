"""Claims on toy runs of diagonal weights: Theorem 4.5, its assumptions, and robustness to noise."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median
from typing import Any

import torch
from torch import Tensor

from rankrise import predict
from rankrise.claims.claim import How, Measure, Number, Statement, noted, thresholds
from rankrise.runs import NotRecorded, PerturbedCurve, Run, ToyRun
from rankrise.runs.toy.run import ACTIVE

TOLERANCES = {"half the tolerance": How(threshold=(0.5,)), "twice the tolerance": How(threshold=(2.0,))}
"""Where nothing says how far from the ideal a number may be: factors of the tolerance."""

CONSIDERED = 0.9
"""Stages after this fraction of the run are left out: at a finite scale they may come after its end."""
TIE = 1e-9
"""Below this fraction of a stage's time, two coordinates cannot be told apart in time."""
PERTURBED = 1e-8
"""The size from which a weight is large enough to perturb."""
RETURNED = 0.1
"""What may remain of a perturbation: forgotten noise leaves nothing, another minimum all."""
REMAINS = "distance between the two paths at the end, as a fraction"
PARTS = {
    "of the kick": "the kick is how far the noise put them apart: above 1, that has grown",
    "of the largest separation": "the farthest apart they ever were, as the noise may have grown since",
}


class OnToyRun(Statement):
    """Judged by run, the worst of its seeds."""

    def __init__(self, run: ToyRun) -> None:
        self.run, self.runs, self.seeds = run, [run], run.settings.seeds

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        return [cls(run) for run in opened if isinstance(run, ToyRun)]

    def margins(self, assumption: str) -> list[float]:
        """The margin by which an assumption of the theorem holds, for each seed with a stage."""
        checked = [self.run.derived(seed, "assumptions") for seed in self.seeds]
        return [float(one[assumption]["margin"]) for one in checked if assumption in one]

    def no_stage(self) -> NotRecorded:
        until = self.run.settings.until
        return NotRecorded(f"Algorithm 1 has no stage before rescaled time {until:g}: raise until.")


class Convergence(OnToyRun):
    """As alpha falls, the flow's stage times and plateau points converge to Algorithm 1's (Theorem 4.5), and
    the support grows by at most one coordinate per stage.
    """

    name = "convergence"
    numbers = (
        Number(
            "largest error of a stage time, extrapolated to alpha = 0, as a fraction of that time",
            "<= 0.02",
            "errors like c/log(1/alpha) vanish in the extrapolation; what is left is of second order",
        ),
        Number(
            "p, where the error of stage times falls like 1/log(1/alpha)^p",
            ">= 0.5",
            "1 in theory; 0 without convergence; half-way between",
        ),
        Number(
            "p, where the distance of the flow from Algorithm 1's staircase falls like 1/log(1/alpha)^p",
            ">= 0.5",
            "the same, for the mean distance from the plateau points over rescaled time",
        ),
        Number(
            "coordinates learned beyond one per stage",
            "<= 0",
            "Theorem 4.5; counted midway through the plateaus that the flow resolves",
        ),
    )
    choices = TOLERANCES

    @cached_property
    def found(self) -> dict[str, list[Any]]:
        """The numbers of every seed, by name."""
        if len(self.run.settings.alphas) < 2:
            raise NotRecorded("the run has one initialisation scale, and a trend takes two.")
        each = [convergence(self.run, seed) for seed in self.seeds]
        return {name: [one[name] for one in each] for name in each[0]}

    def thresholds(self, how: How) -> list[float]:
        """The tolerance widens what is allowed around the theory's 0 and 1."""
        (tolerance,) = how.threshold or (1.0,)
        half_way = 1 - 0.5 * tolerance
        return [0.02 * tolerance, half_way, half_way, 0.0]

    def decide(self, part: str, how: How) -> list[float | None]:
        found, half_way = self.found, self.thresholds(how)[1]
        return [
            max(found["error of the limit"]),
            worst_known(min, found["power of the times"], half_way),
            worst_known(min, found["power of the distance"], half_way),
            worst_known(max, found["excess"], 0),
        ]

    def beside(self, part: str) -> list[Measure]:
        most, stages = max(zip(self.found["resolved"], self.found["stages"], strict=True))
        return [noted("plateaus resolved at the smallest alpha", float(most), f"of {stages} stages")]


def worst_known(worst: Callable[..., float], values: Sequence[float | None], needed: float) -> float | None:
    """The smallest or largest value, if it fails or if all values are known; otherwise None."""
    known = [value for value in values if value is not None]
    if known and (len(known) == len(values) or worst(*known, needed) != needed):
        return worst(known)
    return None


def convergence(run: ToyRun, seed: int) -> dict[str, Any]:
    """One seed's numbers: from the two smallest scales, or at the smallest."""
    stages, until = run.stages(seed), run.settings.until
    larger, smaller = (run.flow(seed, alpha) for alpha in run.settings.alphas[-2:])
    compared = [predict.compare(stages, flow).stages for flow in (larger, smaller)]
    pairs = [
        (before, after) for before, after in zip(*compared, strict=False) if after.time <= CONSIDERED * until
    ]
    if not pairs:
        raise NotRecorded(
            f"Algorithm 1 has no plateau that ends before rescaled time {until:g}; raise until."
        )
    ratio = smaller.log_inverse_alpha / larger.log_inverse_alpha
    limits = [
        (ratio * after.flow_time - before.flow_time) / (ratio - 1) / after.time - 1 for before, after in pairs
    ]
    errors = [median(stage.time_error for stage in side) for side in zip(*pairs, strict=True)]
    excess, resolved = support_excess(stages, smaller)
    return {
        "error of the limit": max(abs(limit) if math.isfinite(limit) else math.inf for limit in limits),
        "power of the times": exponent(errors, ratio),
        "power of the distance": exponent(
            [staircase_distance(stages, flow, until) for flow in (larger, smaller)], ratio
        ),
        "excess": excess,
        "resolved": resolved,
        "stages": len(stages),
    }


def exponent(errors: Sequence[float], ratio: float) -> float | None:
    """The power of 1/log(1/alpha) by which an error falls, if that became `ratio` times smaller.

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

    A plateau is resolved if it lasts at least twice as long as the flow is ever off a stage time: the theorem
    speaks of a time within a plateau as alpha falls, and at this alpha a shorter plateau does not exist yet.
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


class Support(OnToyRun):
    """Along Algorithm 1's path the support only grows: no coordinate leaves it."""

    name = "support"
    numbers = (Number("coordinates that fall back to zero", "<= 0", "what was learned stays learned"),)

    def decide(self, part: str, how: How) -> list[float]:
        left = [len(stage.left) for seed in self.seeds for stage in self.run.stages(seed)]
        if not left:
            raise self.no_stage()
        return [float(sum(left))]

    def beside(self, part: str) -> list[Measure]:
        stages = sum(len(self.run.stages(seed)) for seed in self.seeds)
        return [noted("stages of Algorithm 1", float(stages), "a coordinate could have left at each of them")]


class Nondegeneracy(OnToyRun):
    """Coordinates become active one at a time: at no stage are two of them due at once."""

    name = "nondegeneracy"
    numbers = (
        Number(
            "shortest time by which a stage comes before its runner-up, as a fraction of the stage's time",
            f">= {TIE}",
            "no two coordinates are due at the same time (the theorem's nondegeneracy)",
        ),
    )

    def decide(self, part: str, how: How) -> list[float]:
        known = self.margins("nondegeneracy")
        if not known:
            raise self.no_stage()
        return [min(known)]


class StrictMinima(OnToyRun):
    """Plateaus are strict local minima: after noise at random times, training returns to where it was."""

    name = "strict minima"
    numbers = tuple(
        Number(f"{REMAINS} {part}, largest", f"<= {RETURNED}", why, part) for part, why in PARTS.items()
    )
    margin = "smallest eigenvalue of the Hessian at a plateau"
    margin_why = "a strict minimum means a positive definite Hessian in u on the support (Assumption 4.3)"

    choices = {"the median perturbation": How(aggregate="median")} | thresholds(0.01, 0.5, numbers=2)

    def parts(self) -> Sequence[str]:
        return [*PARTS]

    @cached_property
    def curves(self) -> list[tuple[float, float]]:
        """What remains of each perturbation, where there was something to perturb."""
        kind = self.name.replace(" ", "-")
        curves = [remaining(curve) for seed in self.seeds for curve in self.run.perturbations(seed, kind)]
        return [one for one in curves if one is not None]

    def shares(self, part: str) -> list[float]:
        """In ascending order."""
        if not self.curves:
            raise NotRecorded("at no time of the run was there a weight large enough to perturb.")
        return sorted(one[self.parts().index(part)] for one in self.curves)

    def decide(self, part: str, how: How) -> list[float]:
        shares = self.shares(part)
        return [shares[len(shares) // 2] if how.aggregate else shares[-1]]

    def beside(self, part: str) -> list[Measure]:
        shares, margin = self.shares(part), min(self.margins(self.name.replace(" ", "_")), default=None)
        over = float(sum(share > RETURNED for share in shares))
        return [
            noted(f"{REMAINS} {part}, median", shares[len(shares) // 2], "over all perturbations"),
            noted(f"perturbations with more than {RETURNED:g}", over, f"of {len(shares)}"),
            Number(self.margin, ">= 1e-9", self.margin_why).measure(margin),
        ]


class NoiseRobustness(StrictMinima):
    """Stages are robust: after noise when a coordinate becomes active, training follows the same path."""

    name = "noise robustness"
    margin = "smallest share of the noise that stage B removes"
    margin_why = (
        "stage B, started with noise, must end nearer to the stage's point than it started (Assumption 4.4)"
    )


def remaining(curve: PerturbedCurve) -> tuple[float, float] | None:
    """How far apart the two paths end, over the kick, and over the farthest apart they ever were.

    Noise also delays or hastens stages. So the end of either path is compared with the whole of the other,
    and the nearer one counts. None if no weight was large enough to perturb.
    """
    apart = (curve.perturbed - curve.original).abs().amax(1)
    if float(apart.max()) <= PERTURBED:
        return None
    ends = ((curve.perturbed[-1], curve.original), (curve.original[-1], curve.perturbed))
    left = min(distance_to_path(point.double(), path.double()) for point, path in ends)
    return left / max(float(apart[0]), PERTURBED), left / float(apart.max())


def distance_to_path(point: Tensor, path: Tensor) -> float:
    """The distance, largest over coordinates, from a point [p] to the nearest place on a path [n, p]."""
    start, along = path[:-1], path.diff(dim=0)
    share = ((point - start) * along).sum(1) / along.square().sum(1).clamp_min(1e-300)
    nearest = start + share.clamp(0, 1)[:, None] * along
    return float((point - nearest).abs().amax(1).min())
