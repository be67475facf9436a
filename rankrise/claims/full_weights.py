"""The claim on toy runs of full weights: Figure 3 (d) to (f) as numbers, the worst of a run's seeds."""

import math
from collections.abc import Callable
from functools import cached_property

import numpy as np

from rankrise.claims.claim import How, Number
from rankrise.claims.toy import OnToyRun
from rankrise.recipes.toy_settings import log10_of
from rankrise.runs import FullWeights as Curve
from rankrise.runs import NotRecorded, ToyRun
from rankrise.runs.toy import ACTIVE

LEARNED = 0.05
"""A singular value counts as learned above this fraction of the largest at the end."""
ONE = "between a tenth and nine tenths of their end; one after another leaves one or two"
SHARE = "1: learned together; one after another, each takes its share, a quarter at most"
EARLY = "rank that grows during training is below half then; weights that start large have all"
DROPS = "any training may have one; stages show two, each after a plateau of half its slope"
SMALL = "5 / log(1/scale): a prediction for a vanishing scale is off by as much"
RANK, ORDER, PLATEAUS, TIMES = "rank grows", "one after another", "plateaus and drops", "when predicted"


class FullWeights(OnToyRun):
    """With full weight matrices, singular values are learned one after another, when predicted, rank grows
    during training, and the loss has plateaus and drops.
    """

    name = "full weights"

    def __init__(self, run: ToyRun) -> None:
        super().__init__(run)
        small = 5 / (-log10_of(run.settings.full_scale) * math.log(10))
        self.by_part: dict[str, list[tuple[Number, Callable[..., float], Callable[[Curve], float]]]] = {
            ORDER: [
                (
                    Number("most singular values that are learned at the same time", "<= 2", ONE),
                    max,
                    together,
                ),
                (Number("mean time to learn a value, over the time for all", "<= 0.25", SHARE), max, overlap),
            ],
            RANK: [
                (Number("rank half-way down the loss, over the final rank", "<= 0.5", EARLY), max, early_rank)
            ],
            PLATEAUS: [(Number("drops of the loss after a plateau", ">= 2", DROPS), min, drops)],
            TIMES: [(Number("largest relative error of a predicted time", f"<= {small}", SMALL), max, error)],
        }

    @cached_property
    def curves(self) -> list[Curve]:
        """The curves of all seeds, which must be long and smooth enough to tell."""
        curves = [self.run.full(seed) for seed in self.seeds]
        for curve in curves:
            values, losses, times = values_of(curve), curve.losses.numpy(), curve.times.numpy()
            found, fall = int(learned(values).sum()), losses[0] - losses[-1]
            if found < 3:
                raise NotRecorded(f"{found} singular values were learned, too few: raise full_until.")
            if losses[np.searchsorted(times, 0.9 * times[-1])] - losses[-1] > 0.1 * fall:
                raise NotRecorded("the loss is still falling fast at the end: raise full_until.")
            if np.diff(losses).clip(0).sum() > 0.05 * (losses[0] - losses.min()):
                raise NotRecorded("the loss goes up and down, without plateaus: run with a smaller step.")
        return curves

    def parts(self) -> list[str]:
        return [part for part in self.by_part if part != TIMES or any(map(error, self.curves))]

    def numbers_of(self, part: str) -> list[Number]:
        return [number for number, _, _ in self.by_part[part]]

    def decide(self, part: str, how: How) -> list[float]:
        return [float(worst(map(of, self.curves))) for _, worst, of in self.by_part[part]]


def values_of(curve: Curve) -> np.ndarray:
    """The singular values of both products side by side."""
    return np.concatenate([curve.singular_values_kq.numpy(), curve.singular_values_vo.numpy()], axis=1)


def learned(values: np.ndarray) -> np.ndarray:
    """Which values of a curve (n, p) are learned by the end."""
    last = values[-1]
    return np.asarray((last > 0) & (last >= LEARNED * last.max()))


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
    values = values_of(curve)
    values = values[:, learned(values)]
    begun, done = (values >= part * values[-1] for part in (0.1, 0.9))
    rising = np.logical_or.accumulate(begun) & ~np.logical_or.accumulate(done)
    return int(rising.sum(axis=1).max())


def overlap(curve: Curve) -> float:
    """The mean time a learned value takes from a tenth to nine tenths of its end, over that of all."""
    values, times = values_of(curve), curve.times.numpy()
    values = values[:, learned(values)]
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
