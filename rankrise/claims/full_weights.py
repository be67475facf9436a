"""The claim on toy runs of full weights: Figure 3 (d) to (f) as numbers, the worst of a run's seeds."""

import math
from functools import cached_property

import numpy as np
import torch

from rankrise.claims.claim import How, Measure, Number, noted, values_above
from rankrise.claims.toy import TOLERANCES, OnToyRun
from rankrise.runs import FullWeights as Curve
from rankrise.runs import NotRecorded
from rankrise.runs.toy.run import ACTIVE

LEARNED = 0.05
"""A singular value counts as learned above this fraction of the largest at the end."""
RANK, ORDER, PLATEAUS, TIMES = "rank grows", "one after another", "plateaus and drops", "when predicted"


class FullWeights(OnToyRun):
    """With full weight matrices, singular values are learned one after another, when predicted, rank grows
    during training, and the loss has plateaus and drops.
    """

    name = "full weights"
    numbers = (
        Number(
            "most singular values that are being learned at the same time",
            "<= 2",
            "between a tenth and nine tenths of their end; one after another leaves one or two",
            ORDER,
        ),
        Number(
            "mean time to learn a singular value, as a fraction of the time to learn all",
            "<= 0.25",
            "1: learned together; one after another, each takes its share, a quarter at most",
            ORDER,
        ),
        Number(
            "rank when half the fall of the loss is over, as a fraction of the final rank",
            "<= 0.5",
            "rank that grows during training is below half then; weights that start large have all",
            RANK,
        ),
        Number(
            "drops of the loss after a plateau",
            ">= 2",
            "any training may have one; stages show two, each after a plateau of half its slope",
            PLATEAUS,
        ),
        Number(
            "largest error of a predicted stage time, as a fraction of that time",
            "<= 5",
            "5 / log(1/scale): at a finite scale, a prediction for a vanishing one is off by as much",
            TIMES,
        ),
    )
    choices = values_above(0.01, 0.2) | TOLERANCES | {"the stable rank": How(rank="stable")}

    @cached_property
    def curves(self) -> list[Curve]:
        """The curves of all seeds, which must be long and smooth enough to tell."""
        curves = [self.run.full(seed) for seed in self.seeds]
        for curve in curves:
            if len(curve.times) < 2:
                raise NotRecorded("training stopped before its second record: run with a smaller step.")
            found = int(learned(values_of(curve)).sum())
            if found < 3:
                raise NotRecorded(
                    f"only {found} singular values were learned, too few for an order; raise full_until."
                )
            losses, times = curve.losses.numpy(), curve.times.numpy()
            late = losses[np.searchsorted(times, 0.9 * times[-1])]
            if late - losses[-1] > 0.1 * (losses[0] - losses[-1]):
                raise NotRecorded("the loss is still falling fast at the end: raise full_until.")
            if np.diff(losses).clip(0).sum() > 0.05 * (losses[0] - losses.min()):
                # the step exceeds 2 over the curvature
                raise NotRecorded(
                    "the loss goes up and down, so its plateaus and drops mean nothing: run with a smaller "
                    "step."
                )
        return curves

    def parts(self) -> list[str]:
        predicted = any(prediction_errors(curve, LEARNED) for curve in self.curves)
        return [ORDER, RANK, PLATEAUS, *([TIMES] if predicted else [])]

    def thresholds(self, how: How) -> list[float]:
        """Widened by the tolerance; the last one depends on the scale."""
        (tolerance,) = how.threshold or (1.0,)
        own = [one.threshold * (tolerance if one.sign == "<=" else 1 / tolerance) for one in self.numbers]
        return [*own[:-1], own[-1] / (-self.curves[0].log10_scale * math.log(10))]

    def decide(self, part: str, how: How) -> list[float]:
        if how.rank == "stable":
            return [max(map(early_stable_rank, self.curves))] if part == RANK else []
        least = float(how.rank or LEARNED)
        if part == RANK:
            return [max(early_rank(curve, least) for curve in self.curves)]
        if part == PLATEAUS:
            return [float(min(map(drops, self.curves)))]
        if part == TIMES:
            return [max(error for curve in self.curves for error in prediction_errors(curve, least))]
        together, _ = max(in_transition(values_of(curve), least) for curve in self.curves)
        return [float(together), max(overlap(curve, least) for curve in self.curves)]

    def beside(self, part: str) -> list[Measure]:
        """How many were learned, and as much of diagonal weights, for comparison."""
        fewest = min(int(learned(values_of(curve)).sum()) for curve in self.curves)
        why = f"above {LEARNED:g} of the largest at the end"
        measures = [noted("singular values learned", float(fewest), why)]
        if part != ORDER:
            return measures
        alpha = self.run.settings.alphas[-1]
        try:
            flows = [self.run.flow(seed, alpha).values for seed in self.seeds]
            plateaus = [[stage.point for stage in self.run.stages(seed)] for seed in self.seeds]
        except NotRecorded:
            return measures
        limits = [torch.stack([0 * flow[0], *points]) for flow, points in zip(flows, plateaus, strict=True)]
        for what, curves, more in (
            (f"the exact flow from {alpha}", flows, ""),
            ("Algorithm 1", limits, "; it adds one at a time, but those that are learned move on"),
        ):
            together, count = max(in_transition(curve.abs().numpy()) for curve in curves)
            name = f"most entries of diagonal weights that are being learned at the same time, by {what}"
            why = f"for comparison, of {count} that were learned{more}"
            measures.append(noted(name, float(together), why))
        return measures


def values_of(curve: Curve) -> np.ndarray:
    """The singular values of both products side by side."""
    return np.concatenate([curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy()], axis=1)


def learned(values: np.ndarray, least: float = LEARNED) -> np.ndarray:
    """Which values of a curve (n, p) are learned by the end."""
    last = values[-1]
    return np.asarray((last > 0) & (last >= least * last.max()))


def prediction_errors(curve: Curve, least: float) -> list[float]:
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


def overlap(curve: Curve, least: float) -> float:
    """The mean time a learned value takes from a tenth to nine tenths of its end, over that of all."""
    values, times = values_of(curve), curve.times.numpy()
    values = values[:, learned(values, least)]
    begun, done = (times[(values >= part * values[-1]).argmax(0)] for part in (0.1, 0.9))
    whole = done.max() - begun.min()
    return float((done - begun).mean() / whole) if whole > 0 else 1.0


def half_way(curve: Curve) -> int:
    """The place at which half of the loss's fall is over."""
    losses = curve.losses.numpy()
    return int((losses <= (losses[0] + losses[-1]) / 2).argmax())


def early_rank(curve: Curve, least: float) -> float:
    """The rank half-way, as a fraction of the final rank."""
    values = values_of(curve)
    rank = (values >= least * values[-1].max()).sum(1)
    return float(rank[half_way(curve)] / rank[-1])


def early_stable_rank(curve: Curve) -> float:
    """`early_rank` by the stable rank, of the product that has more of it by then."""

    def stable_rank(values: np.ndarray) -> float:
        return float(np.square(values / values.max()).sum()) if values.any() else 0.0

    half = half_way(curve)
    products = (curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy())
    return max(stable_rank(one[half]) / stable_rank(one[-1]) for one in products if one[-1].any())


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
