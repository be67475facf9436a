"""Claim 3: full weights learn singular values one after another, when predicted; the loss has plateaus and
drops.
"""

from functools import partial
from typing import Any

import numpy as np
import torch

from rankrise.claims.claim import TOLERANCES, Measure, at_least, at_most, by_each_choice, noted
from rankrise.runs import FullWeights, NotRecorded, ToyRun
from rankrise.runs.toy.curves import ACTIVE

LEARNED = 0.05
"""A singular value counts as learned above this fraction of the largest at the end."""

OVERLAP = 0.25
AT_ONCE = 2
EARLY_RANK = 0.5
DROPS = 2
PREDICTED = 5.0
"""In units of 1/log(1/scale): stages at a finite scale are late or early by a few of these."""

PREDICTION = "error of a predicted stage time, as a fraction of that time"
DIAGONAL = "most entries of diagonal weights that are being learned at the same time"
CHOICES: dict[str, dict[str, Any]] = {
    **{f"values above {least:g} of the largest": {"least": least} for least in (0.01, 0.2)},
    **TOLERANCES,
    "the stable rank": {"stable": True},
}

LATE_FALL = 0.1
"""Where more of the loss's fall is in the last tenth of the time, it was stopped in the middle of it."""

RISE = 0.05
"""Where the loss rises more, gradient descent is not stable: its step exceeds 2 over the curvature."""


def full_weights(run: ToyRun) -> list[Measure]:
    """Figure 3 (d) to (f) as numbers, the worst of the run's seeds."""
    curves = [run.full(seed) for seed in run.settings.seeds]
    if min(len(curve.times) for curve in curves) < 2:
        raise NotRecorded("training stopped before its second record: run with a smaller step.")
    found = [in_transition(_values(curve)) for curve in curves]
    fewest = min(count for _, count in found)
    if fewest < 3:
        few = f"only {fewest} singular values were learned by the end"
        raise NotRecorded(f"{few}, and an order takes three; raise full_until.")
    if max(map(late_fall, curves)) > LATE_FALL:
        raise NotRecorded("the loss is still falling fast at the end: raise full_until.")
    if max(map(rise, curves)) > RISE:
        raise NotRecorded(
            "the loss goes up and down, so that its plateaus and drops mean nothing: run with a smaller step."
        )
    together, count = max(found)
    measures = by_each_choice(partial(_deciding, curves), CHOICES)
    predicted = [error for curve in curves for error in prediction_errors(curve)]
    if predicted:
        middle = float(np.median(predicted))
        measures.append(noted(f"median {PREDICTION}", middle, "", part="when predicted"))
    return [
        *measures,
        noted(
            "most singular values being learned at the same time, as a fraction of all that are learned",
            together / count,
            "1: all at once",
            part="one after another",
        ),
        *_of_diagonal_weights(run),
        noted("singular values learned", float(fewest), f"above {LEARNED:g} of the largest at the end"),
    ]


def _of_diagonal_weights(run: ToyRun) -> list[Measure]:
    """How many entries are learned at the same time by the flow at the smallest scale, and by Algorithm 1."""
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
        why = f"for comparison, of {count} that were learned{more}"
        measures.append(noted(f"{DIAGONAL}, by {what}", float(together), why, part="one after another"))
    return measures


def _deciding(
    curves: list[FullWeights], least: float = LEARNED, tolerance: float = 1.0, stable: bool = False
) -> list[Measure]:
    rank = at_most(
        "rank when half the fall of the loss is over, as a fraction of the final rank",
        max(early_stable_rank(curve) if stable else early_rank(curve, least) for curve in curves),
        tolerance * EARLY_RANK,
        "rank that grows during training is below half then; weights that start large have all of it",
        part="rank grows",
    )
    if stable:
        return [rank]
    order = {"part": "one after another"}
    together, count = max(in_transition(_values(curve), least) for curve in curves)
    measures = [
        at_most(
            "most singular values that are being learned at the same time",
            float(together),
            tolerance * AT_ONCE,
            "between a tenth and nine tenths of their end; one after another leaves one, or two where one "
            f"ends as the next begins; all at once would be {count}, which were learned",
            **order,
        ),
        at_most(
            "mean time to learn a singular value, as a fraction of the time to learn all",
            max(overlap(curve, least) for curve in curves),
            tolerance * OVERLAP,
            "values learned together take about as long as all of them (1); "
            "one after another, each takes its share, a quarter at most",
            **order,
        ),
        rank,
        at_least(
            "drops of the loss after a plateau",
            float(min(map(drops, curves))),
            DROPS / tolerance,
            "any training may have one; stages show at least two, each after a plateau of half its slope",
            part="plateaus and drops",
        ),
    ]
    errors = [error for curve in curves for error in prediction_errors(curve, least)]
    if errors:
        allowed = tolerance * PREDICTED
        measures.append(
            at_most(
                f"largest {PREDICTION}",
                float(max(errors)),
                allowed / (-curves[0].log10_scale * np.log(10)),
                f"{allowed:g} / log(1/scale) at the scale 1e{curves[0].log10_scale:g}: a prediction for a "
                "vanishing scale is off by a few times 1/log(1/scale) at a finite one",
                part="when predicted",
            )
        )
    return measures


def prediction_errors(curve: FullWeights, least: float = LEARNED) -> list[float]:
    """The relative error of each predicted time: to when the value rises above 1e-3, as `predict` counts."""
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
    """The most learned values of a curve (n, p) that are at the same time between a tenth and nine tenths of
    their end, and the number of all that are learned.
    """
    values = values[:, learned(values, least)]
    begun, done = (values >= part * values[-1] for part in (0.1, 0.9))
    rising = np.logical_or.accumulate(begun) & ~np.logical_or.accumulate(done)
    return int(rising.sum(axis=1).max()), values.shape[1]


def rise(curve: FullWeights) -> float:
    """How much the loss rises in all, as a fraction of its fall: next to nothing under a stable step."""
    losses = curve.losses
    return float(losses.diff().clamp(min=0).sum() / (losses[0] - losses.min()).clamp(min=1e-300))


def late_fall(curve: FullWeights) -> float:
    """The fraction of the loss's fall that happens in the last tenth of the time."""
    losses, times = curve.losses.numpy(), curve.times.numpy()
    late = losses[np.searchsorted(times, 0.9 * times[-1])]
    return float((late - losses[-1]) / max(losses[0] - losses[-1], 1e-300))


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
    """The fraction of the final rank that is there when half of the loss's fall is over."""
    values = _values(curve)
    rank = (values >= least * values[-1].max()).sum(1)
    return float(rank[_half_way(curve)] / rank[-1])


def early_stable_rank(curve: FullWeights) -> float:
    """The same by the stable rank, of the product that has more of it by then."""
    half = _half_way(curve)
    products = (curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy())
    return max(_stable_rank(one[half]) / _stable_rank(one[-1]) for one in products if one[-1].any())


def _stable_rank(values: np.ndarray) -> float:
    """Of singular values; 0 where all are 0, as those of tiny weights whose products no float holds."""
    return float(np.square(values / values.max()).sum()) if values.any() else 0.0


def _half_way(curve: FullWeights) -> int:
    """The place at which half of the loss's fall is over."""
    losses = curve.losses.numpy()
    return int((losses <= (losses[0] + losses[-1]) / 2).argmax())


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
    """The singular values of both products, in a row."""
    return np.concatenate([curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy()], axis=1)
