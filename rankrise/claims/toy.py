"""Claims on toy runs: Theorem 4.5, its assumptions, robustness to noise, and training of full weights."""

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from statistics import median

import numpy as np
import torch
from torch import Tensor

from rankrise import predict
from rankrise.claims.claim import Number, Statement
from rankrise.claims.heads import How
from rankrise.recipes.toy_settings import log10_of
from rankrise.runs import FullWeights as Curve
from rankrise.runs import NotRecorded, PerturbedCurve, Run, ToyRun
from rankrise.runs.toy import ACTIVE

CONSIDERED = 0.9
"""Stages after this fraction of the run are left out: at a finite scale they may come after its end."""
PERTURBED = 1e-8  # the size from which a weight is large enough to perturb
SECOND_ORDER = "errors like c/log(1/alpha) vanish in the extrapolation; what is left is of second order"
HALF_WAY = "half-way between 1, the theory, and 0, no convergence"
KICK, SEPARATION = "of the kick", "of the largest separation"
"""How far apart the noise put two paths, and the farthest apart they ever were."""
REMAINS = Number(
    "largest distance between the two paths at the end", "<= 0.1", "forgotten noise leaves nothing"
)
HALF_THE_TOLERANCE = {"half the tolerance": How(threshold=(0.01, 0.75, 0.75, 0.0))}
MEDIAN = {"the median perturbation": How(aggregate="median")}
A_HUNDREDTH = {"a threshold of 0.01": How(threshold=(0.01,))}
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
    the support grows by at most one coordinate per stage."""

    name = "convergence"
    numbers = (
        Number("largest error of a stage time, extrapolated to alpha = 0", "<= 0.02", SECOND_ORDER),
        Number("p, where the error of stage times falls like 1/log(1/alpha)^p", ">= 0.5", HALF_WAY),
        Number("p, the same for the distance from Algorithm 1's path over time", ">= 0.5", HALF_WAY),
        Number(
            "coordinates learned beyond one per stage", "<= 0", "Theorem 4.5, on plateaus that are resolved"
        ),
    )
    choices = HALF_THE_TOLERANCE

    def decide(self, part: str, how: How) -> list[float | None]:
        if len(self.run.settings.alphas) < 2:
            raise NotRecorded("the run has one initialisation scale, and a trend takes two.")
        columns = zip(*(convergence(self.run, seed) for seed in self.seeds), strict=True)
        pairs = zip(self.numbers, columns, strict=True)
        return [None if None in values else number.worst(values) for number, values in pairs]


def convergence(run: ToyRun, seed: int) -> tuple[float | None, ...]:
    """One seed's numbers, from the two smallest scales or at the smallest."""
    stages, until = run.stages(seed), run.settings.until
    larger, smaller = (run.flow(seed, alpha) for alpha in run.settings.alphas[-2:])
    compared = [predict.compare(stages, flow).stages for flow in (larger, smaller)]
    pairs = [pair for pair in zip(*compared, strict=False) if pair[1].time <= CONSIDERED * until]
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
    choices = MEDIAN | A_HUNDREDTH

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


# Full weights: Figure 3 (d) to (f) as numbers.

LEARNED = 0.05  # of the largest singular value at the end: above, one counts as learned
ONE = "between a tenth and nine tenths of their end; one after another leaves one or two"
SHARE = "1: learned together; one after another, each takes its share, a quarter at most"
EARLY = "rank that grows during training is below half then; weights that start large have all"
DROPS = "any training may have one; stages show two, each after a plateau of half its slope"
SMALL = "5 / log(1/scale): a prediction for a vanishing scale is off by as much"
TIMES = "when predicted"


def values_of(curve: Curve) -> np.ndarray:
    """The singular values of both products side by side."""
    return np.concatenate([curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy()], axis=1)


def learned(curve: Curve) -> np.ndarray:
    """Those that are learned by the end."""
    values = values_of(curve)
    return values[:, (values[-1] > 0) & (values[-1] >= LEARNED * values[-1].max())]


def error(curve: Curve) -> float:
    """The largest error of a predicted time, against when the value rises above 1e-3; 0 if there is none."""
    times, found = curve.rescaled_times.numpy(), [0.0]
    for values, predicted in (
        (curve.singular_values_kq.numpy(), curve.predicted_kq.tolist()),
        (curve.singular_values_vo.numpy(), curve.predicted_vo.tolist()),
    ):
        for number, time in enumerate(predicted):
            if values[-1, number] >= LEARNED * values[-1].max():
                reached = float(times[(values[:, number] > ACTIVE).argmax()])
                found.append(abs(reached - time) / time)
    return max(found)


def together(curve: Curve) -> int:
    """The most learned values that are at once between a tenth and nine tenths of their end."""
    values = learned(curve)
    begun, done = (values >= part * values[-1] for part in (0.1, 0.9))
    rising = np.logical_or.accumulate(begun) & ~np.logical_or.accumulate(done)
    return int(rising.sum(axis=1).max())


def overlap(curve: Curve) -> float:
    """The mean time a learned value takes from a tenth to nine tenths of its end, over that of all."""
    values, times = learned(curve), curve.times.numpy()
    begun, done = (times[(values >= part * values[-1]).argmax(0)] for part in (0.1, 0.9))
    whole = done.max() - begun.min()
    return float((done - begun).mean() / whole) if whole > 0 else 1.0


def early_rank(curve: Curve) -> float:
    """The rank when half of the loss's fall is over, as a fraction of the final rank."""
    values, losses = values_of(curve), curve.losses.numpy()
    rank = (values >= LEARNED * values[-1].max()).sum(1)
    return float(rank[(losses <= (losses[0] + losses[-1]) / 2).argmax()] / rank[-1])


def drops(curve: Curve) -> int:
    """How often log(loss) drops after a plateau: to twice its slope, and 1/20 of the steepest."""
    slope = -np.gradient(curve.losses.clamp(min=1e-300).log().numpy(), curve.times.numpy())
    least, count, low, peak, dropping = 0.05 * slope.max(), 0, slope[0], 0.0, False
    for value in slope:
        if dropping:
            peak = max(peak, value)
            if value < peak / 2:
                dropping, low = False, value
        else:
            low = min(low, value)
            if value > least and value > 2 * low:
                dropping, peak, count = True, value, count + 1
    return count


MEASURED: dict[str, list[tuple[Number, Callable[[Curve], float]]]] = {
    "one after another": [
        (Number("most singular values that are learned at the same time", "<= 2", ONE), together),
        (Number("mean time to learn a value, over the time for all", "<= 0.25", SHARE), overlap),
    ],
    "rank grows": [(Number("rank half-way down the loss, over the final rank", "<= 0.5", EARLY), early_rank)],
    "plateaus and drops": [(Number("drops of the loss after a plateau", ">= 2", DROPS), drops)],
}
"""By part of the claim, its numbers, and the function of a curve that gives each."""


class FullWeights(OnToyRun):
    """With full weight matrices, singular values are learned one after another, when predicted, rank grows
    during training, and the loss has plateaus and drops."""

    name = "full weights"

    def __init__(self, run: ToyRun) -> None:
        super().__init__(run)
        small = 5 / (-log10_of(run.settings.full_scale) * math.log(10))
        of_times = Number("largest relative error of a predicted time", f"<= {small}", SMALL)
        self.measured = MEASURED | {TIMES: [(of_times, error)]}

    @cached_property
    def curves(self) -> list[Curve]:
        """The curves of all seeds, which must be long and smooth enough to tell."""
        curves = [self.run.full(seed) for seed in self.seeds]
        for curve in curves:
            losses, times = curve.losses.numpy(), curve.times.numpy()
            found, fall = learned(curve).shape[1], losses[0] - losses[-1]
            if found < 3:
                raise NotRecorded(f"{found} singular values were learned, too few: raise full_until.")
            if losses[np.searchsorted(times, 0.9 * times[-1])] - losses[-1] > 0.1 * fall:
                raise NotRecorded("the loss is still falling fast at the end: raise full_until.")
            if np.diff(losses).clip(0).sum() > 0.05 * (losses[0] - losses.min()):
                raise NotRecorded("the loss goes up and down, without plateaus: run with a smaller step.")
        return curves

    def parts(self) -> list[str]:
        return [part for part in self.measured if part != TIMES or any(map(error, self.curves))]

    def numbers_of(self, part: str) -> list[Number]:
        return [number for number, _ in self.measured[part]]

    def decide(self, part: str, how: How) -> list[float]:
        return [float(number.worst(map(of, self.curves))) for number, of in self.measured[part]]
