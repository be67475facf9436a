"""Claims on toy runs of diagonal weights: Theorem 4.5, its assumptions, and robustness to noise."""

import math
from collections.abc import Callable, Sequence
from statistics import median

import torch
from torch import Tensor

from rankrise import predict
from rankrise.claims.claim import How, Number, Statement, other
from rankrise.runs import NotRecorded, PerturbedCurve, Run, ToyRun
from rankrise.runs.toy import ACTIVE

CONSIDERED = 0.9
"""Stages after this fraction of the run are left out: at a finite scale they may come after its end."""
PERTURBED = 1e-8
"""The size from which a weight is large enough to perturb."""
SECOND_ORDER = "errors like c/log(1/alpha) vanish in the extrapolation; what is left is of second order"
HALF_WAY = "half-way between 1, the theory, and 0, no convergence"
KICK, SEPARATION = "of the kick", "of the largest separation"
"""How far apart the noise put two paths, and the farthest apart they ever were."""
REMAINS = Number(
    "largest distance between the two paths at the end", "<= 0.1", "forgotten noise leaves nothing"
)
NO_TIE = "no two coordinates are due at the same time (the theorem's nondegeneracy)"


class OnToyRun(Statement):
    """Judged by run, the worst of its seeds."""

    def __init__(self, run: ToyRun) -> None:
        self.run, self.runs, self.seeds = run, [run], run.settings.seeds

    @classmethod
    def on(cls, opened: Sequence[Run]) -> list[Statement]:
        return [cls(run) for run in opened if isinstance(run, ToyRun)]

    def margin(self, assumption: str) -> float | None:
        """The least margin by which an assumption of the theorem holds; None if there is no stage."""
        checked = [self.run.derived(seed, "assumptions") for seed in self.seeds]
        return min((float(one[assumption]["margin"]) for one in checked if assumption in one), default=None)


class Convergence(OnToyRun):
    """As alpha falls, the flow's stage times and plateau points converge to Algorithm 1's (Theorem 4.5), and
    the support grows by at most one coordinate per stage.
    """

    name = "convergence"
    numbers = (
        Number("largest error of a stage time, extrapolated to alpha = 0", "<= 0.02", SECOND_ORDER),
        Number("p, where the error of stage times falls like 1/log(1/alpha)^p", ">= 0.5", HALF_WAY),
        Number("p, the same for the distance from Algorithm 1's path over time", ">= 0.5", HALF_WAY),
        Number(
            "coordinates learned beyond one per stage", "<= 0", "Theorem 4.5, on plateaus that are resolved"
        ),
    )
    choices = other("half the tolerance", threshold=(0.01, 0.75, 0.75, 0.0))

    def decide(self, part: str, how: How) -> list[float | None]:
        if len(self.run.settings.alphas) < 2:
            raise NotRecorded("the run has one initialisation scale, and a trend takes two.")
        columns = zip(*(convergence(self.run, seed) for seed in self.seeds), strict=True)
        worst: tuple[Callable[..., float], ...] = (max, min, min, max)
        return [None if None in values else of(values) for of, values in zip(worst, columns, strict=True)]


def convergence(run: ToyRun, seed: int) -> tuple[float | None, ...]:
    """One seed's numbers, from the two smallest scales or at the smallest."""
    stages, until = run.stages(seed), run.settings.until
    larger, smaller = (run.flow(seed, alpha) for alpha in run.settings.alphas[-2:])
    compared = [predict.compare(stages, flow).stages for flow in (larger, smaller)]
    pairs = [
        (before, after) for before, after in zip(*compared, strict=False) if after.time <= CONSIDERED * until
    ]
    if not pairs:
        raise NotRecorded(f"Algorithm 1 has no plateau that ends before time {until:g}: raise until.")
    ratio = smaller.log_inverse_alpha / larger.log_inverse_alpha
    limits = [
        (ratio * after.flow_time - before.flow_time) / (ratio - 1) / after.time - 1 for before, after in pairs
    ]
    error = max(abs(limit) if math.isfinite(limit) else math.inf for limit in limits)
    times = [median(stage.time_error for stage in side) for side in zip(*pairs, strict=True)]
    distances = [staircase_distance(stages, flow, until) for flow in (larger, smaller)]
    return error, exponent(times, ratio), exponent(distances, ratio), support_excess(stages, smaller)


def exponent(errors: Sequence[float], ratio: float) -> float | None:
    """The power of 1/log(1/alpha) by which an error falls, if that became `ratio` times smaller."""
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


def support_excess(stages: predict.Stages, flow: predict.Flow) -> float | None:
    """By how many coordinates the flow's support outgrew one per stage; None if it resolves no plateau.

    A plateau is resolved if it lasts at least twice as long as the flow is ever off a stage time: the theorem
    speaks of a time within a plateau as alpha falls, and at this alpha a shorter plateau does not exist yet.
    """
    rows = predict.compare(stages, flow).stages
    off = max(abs(row.flow_time - row.time) for row in rows)
    resolved = [number for number, row in enumerate(rows) if row.middle - row.time >= off]
    if not resolved:
        return None
    excess, before, active = 0, -1, set[int]()
    for number in resolved:
        now = set((flow.at(rows[number].middle).abs() > ACTIVE).nonzero()[:, 0].tolist())
        excess = max(excess, len(now - active) - (number - before))
        before, active = number, now
    return float(excess)


class Support(OnToyRun):
    """Along Algorithm 1's path the support only grows: no coordinate leaves it."""

    name = "support"
    numbers = (Number("coordinates that fall back to zero", "<= 0", "what was learned stays learned"),)

    def decide(self, part: str, how: How) -> list[float | None]:
        left = [len(stage.left) for seed in self.seeds for stage in self.run.stages(seed)]
        return [float(sum(left)) if left else None]


class Nondegeneracy(OnToyRun):
    """Coordinates become active one at a time: at no stage are two of them due at once."""

    name = "nondegeneracy"
    numbers = (
        Number("least time between a stage and its runner-up, over the stage's time", ">= 1e-9", NO_TIE),
    )

    def decide(self, part: str, how: How) -> list[float | None]:
        return [self.margin("nondegeneracy")]


class StrictMinima(OnToyRun):
    """Plateaus are strict local minima: after noise at random times, training returns to where it was."""

    name = "strict minima"
    numbers = (
        REMAINS,
        Number(
            "smallest eigenvalue of the Hessian in u at a plateau", ">= 1e-9", "Assumption 4.3: strict minima"
        ),
    )
    choices = other("the median perturbation", aggregate="median")
    choices |= other("a threshold of 0.01", threshold=(0.01,))

    def parts(self) -> Sequence[str]:
        return [KICK, SEPARATION]

    def decide(self, part: str, how: How) -> list[float | None]:
        kind, place = self.name.replace(" ", "-"), self.parts().index(part)
        every = [remaining(curve) for seed in self.seeds for curve in self.run.perturbations(seed, kind)]
        shares = sorted(one[place] for one in every if one is not None)
        if not shares:
            raise NotRecorded("at no time of the run was there a weight large enough to perturb.")
        margin = self.margin(self.name.replace(" ", "_"))
        return [shares[len(shares) // 2] if how.aggregate else shares[-1], margin]


class NoiseRobustness(StrictMinima):
    """Stages are robust: after noise when a coordinate becomes active, training follows the same path."""

    name = "noise robustness"
    numbers = (
        REMAINS,
        Number("least share of noise that stage B removes", ">= 1e-9", "above 0 (Assumption 4.4)"),
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
