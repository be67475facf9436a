"""Claims on toy runs: Theorem 4.5, its assumptions, robustness to noise, and full weight matrices."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch
from torch import Tensor

from rankrise import predict
from rankrise.claims.claim import How, Measure, at_least, at_most, by_each_choice, noted
from rankrise.runs import FullWeights, NotRecorded, PerturbedCurve, ToyRun
from rankrise.runs.toy.curves import ACTIVE

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

LEARNED = 0.05
"""A singular value counts as learned above this fraction of the largest at the end."""


def convergence(run: ToyRun) -> list[Measure]:
    """Theorem 4.5 on the two smallest scales of a run, the worst of its seeds."""
    if len(run.settings.alphas) < 2:
        raise NotRecorded("the run has one initialisation scale, and a trend takes two.")
    found = [_convergence(run, seed) for seed in run.settings.seeds]
    scales = " and ".join(run.settings.alphas[-2:])

    def deciding(how: How) -> list[Measure]:
        """The worst of the seeds; the tolerance widens what is allowed around the theory's 0 and 1."""
        (tolerance,) = how.threshold or (1.0,)
        half_way = 1 - 0.5 * tolerance
        return [
            at_most(
                "largest error of a stage time, extrapolated to alpha = 0, as a fraction of that time",
                max(one.limit_error for one in found),
                0.02 * tolerance,
                f"errors of the form c/log(1/alpha) vanish on the line through {scales}; "
                "what is left is of second order, below 2 %",
            ),
            at_least(
                "p, where the error of stage times falls like 1/log(1/alpha)^p",
                least_known([one.times_exponent for one in found], half_way),
                half_way,
                "1 in theory; 0 without convergence; half-way between",
            ),
            at_least(
                "p, where the distance of the flow from Algorithm 1's staircase falls like 1/log(1/alpha)^p",
                least_known([one.curve_exponent for one in found], half_way),
                half_way,
                "the same, for the mean distance from the plateau points over rescaled time",
            ),
            at_most(
                "coordinates learned beyond one per stage",
                most_known([one.excess for one in found], 0),
                0,
                "Theorem 4.5: at most one per stage; counted midway through the plateaus that the flow "
                "resolves",
            ),
        ]

    fewest = max(found, key=lambda one: one.resolved)
    return [
        *by_each_choice(deciding, TOLERANCES),
        noted(
            "median error of a stage time at the smallest alpha, as a fraction of that time",
            max(one.time_error for one in found),
        ),
        noted(
            "mean distance of the flow from the staircase at the smallest alpha, as a fraction of its height",
            max(one.distance for one in found),
        ),
        noted(
            "stages tied with another coordinate",
            float(max(one.ties for one in found)),
            "the theorem assumes none; the heads of a layer start tied, being exchangeable",
        ),
        noted(
            "plateaus resolved at the smallest alpha", float(fewest.resolved), f"of {fewest.stages} stages"
        ),
    ]


def least_known(values: Sequence[float | None], needed: float) -> float | None:
    """The smallest value if it fails, or if all are known; otherwise None."""
    known = [value for value in values if value is not None]
    return min(known) if known and (len(known) == len(values) or min(known) < needed) else None


def most_known(values: Sequence[float | None], needed: float) -> float | None:
    """The largest value if it fails, or if all are known; otherwise None."""
    known = [value for value in values if value is not None]
    return max(known) if known and (len(known) == len(values) or max(known) > needed) else None


@dataclass(frozen=True)
class _Convergence:
    """One seed's numbers: from the two smallest scales, or at the smallest."""

    limit_error: float
    times_exponent: float | None
    curve_exponent: float | None
    excess: float | None
    time_error: float
    distance: float
    ties: int
    resolved: int
    stages: int


def _convergence(run: ToyRun, seed: int) -> _Convergence:
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
    distances = [staircase_distance(stages, flow, until) for flow in (larger, smaller)]
    excess, resolved = support_excess(stages, smaller)
    return _Convergence(
        limit_error=max(abs(limit) if math.isfinite(limit) else math.inf for limit in limits),
        times_exponent=exponent(errors, ratio),
        curve_exponent=exponent(distances, ratio),
        excess=excess,
        time_error=errors[1],
        distance=distances[1],
        ties=len(stages.ties),
        resolved=resolved,
        stages=len(stages),
    )


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


def support_grows(run: ToyRun) -> list[Measure]:
    """How many coordinates leave the support again, over all stages of all seeds."""
    stages = [stage for seed in run.settings.seeds for stage in run.stages(seed)]
    if not stages:
        raise _no_stage(run)
    left = sum(len(stage.left) for stage in stages)
    return [
        at_most("coordinates that fall back to zero", float(left), 0, "what was learned stays learned"),
        noted("stages of Algorithm 1", float(len(stages)), "a coordinate could have left at each of them"),
    ]


def nondegeneracy(run: ToyRun) -> list[Measure]:
    """The smallest gap in time between a stage's coordinate and the next one due, over all stages."""
    checked = [run.derived(seed, "assumptions") for seed in run.settings.seeds]
    known = [one["nondegeneracy"] for one in checked if "nondegeneracy" in one]
    if not known:
        raise _no_stage(run)
    gaps = sorted(float(gap) for one in known for gap in one["margins"])
    return [
        at_least(
            "shortest time by which a stage comes before its runner-up, as a fraction of the stage's time",
            min(float(one["margin"]) for one in known),
            TIE,
            "no two coordinates are due at the same time (the theorem's nondegeneracy)",
        ),
        noted(
            "the same, median over stages",
            gaps[len(gaps) // 2],
            "the flow resolves a gap only where alpha is small enough",
        ),
    ]


def _no_stage(run: ToyRun) -> NotRecorded:
    return NotRecorded(f"Algorithm 1 has no stage before rescaled time {run.settings.until:g}: raise until.")


def strict_minima(run: ToyRun) -> list[Measure]:
    """Noise at random times dies out, and the Hessian at every plateau's point is positive definite."""
    margin = "smallest eigenvalue of the Hessian at a plateau"
    why = "a strict minimum means a positive definite Hessian in u on the support (Assumption 4.3)"
    return _perturbations(run, "strict-minima", "strict_minima", margin, why)


def noise_robustness(run: ToyRun) -> list[Measure]:
    """Noise when a coordinate becomes active does not change where the stage leads."""
    margin = "smallest share of the noise that stage B removes"
    why = "stage B, started with noise, must end nearer to the stage's point than it started (Assumption 4.4)"
    return _perturbations(run, "noise-robustness", "noise_robustness", margin, why)


def _perturbations(run: ToyRun, kind: str, assumption: str, margin: str, margin_why: str) -> list[Measure]:
    parts = {
        "of the kick": "the kick is how far the noise put them apart: above 1, that has grown",
        "of the largest separation": "the farthest apart they ever were, as the noise may have grown since",
    }
    choices = {
        "the median perturbation": How(aggregate="median"),
        **{f"a threshold of {cut:g}": How(threshold=(cut,)) for cut in (0.01, 0.5)},
    }
    curves = [curve for seed in run.settings.seeds for curve in run.perturbations(seed, kind)]
    left = [shares for shares in map(remaining, curves) if shares is not None]
    if not left:
        raise NotRecorded("at no time of the run was there a weight large enough to perturb.")
    checked = [run.derived(seed, "assumptions") for seed in run.settings.seeds]
    margins = [float(one[assumption]["margin"]) for one in checked if assumption in one]

    def deciding(part: str, shares: Sequence[float], how: How) -> list[Measure]:
        name = f"distance between the two paths at the end, as a fraction {part}, largest"
        value = shares[len(shares) // 2] if how.aggregate else shares[-1]
        return [at_most(name, value, (how.threshold or (RETURNED,))[0], parts[part], part=part)]

    measures: list[Measure] = []
    for part, unsorted in zip(parts, zip(*left, strict=True), strict=True):
        shares = sorted(unsorted)
        name = f"distance between the two paths at the end, as a fraction {part}, median"
        over = sum(share > RETURNED for share in shares)
        measures += by_each_choice(partial(deciding, part, shares), choices)
        measures.append(noted(name, shares[len(shares) // 2], "over all perturbations", part=part))
        more = f"perturbations with more than {RETURNED:g}"
        measures.append(noted(more, float(over), f"of {len(shares)}", part=part))
    skipped = len(curves) - len(left)
    had = f"{skipped} more had nothing to perturb" if skipped else "all had weights to perturb"
    return [
        *measures,
        at_least(margin, min(margins) if margins else None, 1e-9, margin_why),
        noted("perturbations", float(len(left)), had),
    ]


def remaining(curve: PerturbedCurve) -> tuple[float, float] | None:
    """How far apart the two paths end, over the kick, and over the farthest apart they ever were.

    Noise also delays or hastens stages. So the end of either path is compared with the whole of the other,
    and the nearer one counts. None if no weight was large enough to perturb.
    """
    apart = (curve.perturbed - curve.original).abs().amax(1)
    if float(apart.max()) <= PERTURBED:
        return None
    ends = ((curve.perturbed[-1], curve.original), (curve.original[-1], curve.perturbed))
    left = min(distance_to_path(point, path) for point, path in ends)
    return left / max(float(apart[0]), PERTURBED), left / float(apart.max())


def distance_to_path(point: Tensor, path: Tensor) -> float:
    """The distance, largest over coordinates, from a point [p] to the nearest place on a path [n, p].

    >>> distance_to_path(torch.tensor([0.5, 0.1]), torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    0.1...
    """
    point, path = point.double(), path.double()
    start, along = path[:-1], path.diff(dim=0)
    share = ((point - start) * along).sum(1) / along.square().sum(1).clamp_min(1e-300)
    nearest = start + share.clamp(0, 1)[:, None] * along
    return float((point - nearest).abs().amax(1).min())


def full_weights(run: ToyRun) -> list[Measure]:
    """Figure 3 (d) to (f) as numbers, the worst of the run's seeds."""
    choices = {
        **{f"values above {least:g} of the largest": How(rank=str(least)) for least in (0.01, 0.2)},
        **TOLERANCES,
        "the stable rank": How(rank="stable"),
    }
    curves = [run.full(seed) for seed in run.settings.seeds]
    if min(len(curve.times) for curve in curves) < 2:
        raise NotRecorded("training stopped before its second record: run with a smaller step.")
    together, count = max(in_transition(_values(curve)) for curve in curves)
    fewest = min(int(learned(_values(curve)).sum()) for curve in curves)
    if fewest < 3:
        raise NotRecorded(
            f"only {fewest} singular values were learned, too few for an order; raise full_until."
        )
    if max(map(late_fall, curves)) > 0.1:
        raise NotRecorded("the loss is still falling fast at the end: raise full_until.")
    if max(map(rise, curves)) > 0.05:  # the step exceeds 2 over the curvature
        raise NotRecorded(
            "the loss goes up and down, so that its plateaus and drops mean nothing: run with a smaller step."
        )
    measures = by_each_choice(partial(_full_weights, curves), choices)
    predicted = [error for curve in curves for error in prediction_errors(curve)]
    if predicted:
        name = "median error of a predicted stage time, as a fraction of that time"
        measures.append(noted(name, float(np.median(predicted)), part="when predicted"))
    return [
        *measures,
        noted(
            "most singular values being learned at the same time, as a fraction of all that are learned",
            together / count,
            "1: all at once",
            part="one after another",
        ),
        *_diagonal_weights(run),
        noted("singular values learned", float(fewest), f"above {LEARNED:g} of the largest at the end"),
    ]


def _full_weights(curves: Sequence[FullWeights], how: How) -> list[Measure]:
    stable = how.rank == "stable"
    least = LEARNED if stable or not how.rank else float(how.rank)
    (tolerance,) = how.threshold or (1.0,)
    rank = at_most(
        "rank when half the fall of the loss is over, as a fraction of the final rank",
        max(early_stable_rank(curve) if stable else early_rank(curve, least) for curve in curves),
        tolerance * 0.5,
        "rank that grows during training is below half then; weights that start large have all of it",
        part="rank grows",
    )
    if stable:
        return [rank]
    together, count = max(in_transition(_values(curve), least) for curve in curves)
    measures = [
        at_most(
            "most singular values that are being learned at the same time",
            float(together),
            tolerance * 2,
            "between a tenth and nine tenths of their end; one after another leaves one, or two where one "
            f"ends as the next begins; all at once would be {count}, which were learned",
            part="one after another",
        ),
        at_most(
            "mean time to learn a singular value, as a fraction of the time to learn all",
            max(overlap(curve, least) for curve in curves),
            tolerance * 0.25,
            "values learned together take about as long as all of them (1); "
            "one after another, each takes its share, a quarter at most",
            part="one after another",
        ),
        rank,
        at_least(
            "drops of the loss after a plateau",
            float(min(map(drops, curves))),
            2 / tolerance,
            "any training may have one; stages show at least two, each after a plateau of half its slope",
            part="plateaus and drops",
        ),
    ]
    errors = [error for curve in curves for error in prediction_errors(curve, least)]
    if errors:
        allowed, scale = tolerance * 5.0, curves[0].log10_scale
        measures.append(
            at_most(
                "largest error of a predicted stage time, as a fraction of that time",
                float(max(errors)),
                allowed / (-scale * np.log(10)),
                f"{allowed:g} / log(1/scale) at the scale 1e{scale:g}: a prediction for a vanishing scale is "
                "off by a few times 1/log(1/scale) at a finite one",
                part="when predicted",
            )
        )
    return measures


def _diagonal_weights(run: ToyRun) -> list[Measure]:
    """For comparison: how many entries of diagonal weights the flow and Algorithm 1 learn at once."""
    seeds, alpha = run.settings.seeds, run.settings.alphas[-1]
    try:
        flows = [run.flow(seed, alpha).values for seed in seeds]
        plateaus = [[stage.point for stage in run.stages(seed)] for seed in seeds]
    except NotRecorded:
        return []
    limits = [torch.stack([0 * flow[0], *points]) for flow, points in zip(flows, plateaus, strict=True)]
    measures = []
    for what, curves, more in (
        (f"the exact flow from {alpha}", flows, ""),
        ("Algorithm 1", limits, "; it adds one at a time, but those that are learned move on"),
    ):
        together, count = max(in_transition(curve.abs().numpy()) for curve in curves)
        name = f"most entries of diagonal weights that are being learned at the same time, by {what}"
        why = f"for comparison, of {count} that were learned{more}"
        measures.append(noted(name, float(together), why, part="one after another"))
    return measures


def prediction_errors(curve: FullWeights, least: float = LEARNED) -> list[float]:
    """The relative error of each predicted time, against when the value rises above 1e-3."""
    times = curve.rescaled_times.numpy()
    found = []
    for values, predicted in (
        (curve.singular_values_kq.numpy(), curve.predicted_kq.tolist()),
        (curve.singular_values_vo.numpy(), curve.predicted_vo.tolist()),
    ):
        for number, time in enumerate(predicted):
            if values[-1, number] >= least * values[-1].max():
                reached = float(times[(values[:, number] > ACTIVE).argmax()])
                found.append(abs(reached - time) / time)
    return found


def in_transition(values: np.ndarray, least: float = LEARNED) -> tuple[int, int]:
    """The most learned values of a curve (n, p) that are at once between a tenth and nine tenths of their
    end, and the number of all that are learned.
    """
    values = values[:, learned(values, least)]
    begun, done = (values >= part * values[-1] for part in (0.1, 0.9))
    rising = np.logical_or.accumulate(begun) & ~np.logical_or.accumulate(done)
    return int(rising.sum(axis=1).max()), values.shape[1]


def learned(values: np.ndarray, least: float = LEARNED) -> np.ndarray:
    """Which values of a curve (n, p) are learned by the end."""
    last = values[-1]
    return (last > 0) & (last >= least * last.max())


def overlap(curve: FullWeights, least: float = LEARNED) -> float:
    """The mean time a learned value takes from a tenth to nine tenths of its end, over that of all."""
    values, times = _values(curve), curve.times.numpy()
    values = values[:, learned(values, least)]
    reached = [times[(values >= part * values[-1]).argmax(0)] for part in (0.1, 0.9)]
    whole = reached[1].max() - reached[0].min()
    return float((reached[1] - reached[0]).mean() / whole) if whole > 0 else 1.0


def early_rank(curve: FullWeights, least: float = LEARNED) -> float:
    """The rank when half of the loss's fall is over, as a fraction of the final rank."""
    values = _values(curve)
    rank = (values >= least * values[-1].max()).sum(1)
    return float(rank[_half_way(curve)] / rank[-1])


def early_stable_rank(curve: FullWeights) -> float:
    """`early_rank` by the stable rank, of the product that has more of it by then."""

    def stable_rank(values: np.ndarray) -> float:
        return float(np.square(values / values.max()).sum()) if values.any() else 0.0

    half = _half_way(curve)
    products = (curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy())
    return max(stable_rank(one[half]) / stable_rank(one[-1]) for one in products if one[-1].any())


def drops(curve: FullWeights) -> int:
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


def _values(curve: FullWeights) -> np.ndarray:
    """The singular values of both products side by side."""
    return np.concatenate([curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy()], axis=1)


def _half_way(curve: FullWeights) -> int:
    """The place at which half of the loss's fall is over."""
    losses = curve.losses.numpy()
    return int((losses <= (losses[0] + losses[-1]) / 2).argmax())


def rise(curve: FullWeights) -> float:
    """How much the loss rises in all, as a fraction of its fall."""
    losses = curve.losses
    return float(losses.diff().clamp(min=0).sum() / (losses[0] - losses.min()).clamp(min=1e-300))


def late_fall(curve: FullWeights) -> float:
    """The fraction of the loss's fall that happens in the last tenth of the time."""
    losses, times = curve.losses.numpy(), curve.times.numpy()
    late = losses[np.searchsorted(times, 0.9 * times[-1])]
    return float((late - losses[-1]) / max(losses[0] - losses[-1], 1e-300))
