"""Claim 4 on tracked runs: the change is of low rank, and its rank grows during training."""

import numpy as np

from rankrise.claims.claim import Measure, at_least, at_most, told
from rankrise.claims.heads import at_the_end, judged_at
from rankrise.claims.losses import losses
from rankrise.claims.statistics import mean_bounds, spearman
from rankrise.runs import NotRecorded, Study, TrackedRun

FAR_BELOW = 0.1
SMALLEST_HEAD = 20
EARLY = 0.01
MOST_HEADS = 0.75
TREND = 0.5
FEWEST_STEPS = 8
MOMENTS = 40


def low_rank(study: Study) -> list[Measure]:
    """The stable rank of the change at the end of training against the size of a head, in the worst layer."""
    first = study.main[0]
    sizes = [int(layer["d_head"]) for layer in first.layers]
    if min(sizes) < SMALLEST_HEAD:
        raise NotRecorded(
            f"a tenth of the head size {min(sizes)} is below 2, where only rank one would pass: "
            f"train heads of size {SMALLEST_HEAD} or more"
        )
    measures: list[Measure] = []
    for product in first.products:
        ends = zip(at_the_end(study.main, product), sizes, strict=True)
        shares = [mean_bounds(heads)[1] / size if len(heads) else 0.0 for heads, size in ends]
        worst = int(np.argmax(shares))
        measures.append(
            at_most(
                f"stable rank of the change of {product} over the head size, worst layer (upper bound)",
                shares[worst],
                FAR_BELOW,
                "far below is an order of magnitude; upper 95 % bound of the mean over heads",
            )
        )
        initial = first.spectrum(product)[worst]
        random = (initial**2).sum(-1) / initial[:, 0] ** 2 / sizes[worst]
        measures.append(
            told(
                f"the same of the initial {product} there",
                float(random.mean()),
                f"what random weights have; the worst layer is number {worst + 1}",
            )
        )
    return [*measures, *_learned(study), *judged_at(study)]


def _learned(study: Study) -> list[Measure]:
    """How far the training loss fell, where recorded and above 0 at first."""
    known = losses(study.main)
    if not len(known) or (known[:, 0] <= 0).any():
        return []
    first, last = known.mean(axis=0)
    why = f"{first:.3g} to {last:.3g}; near 1 little is learned, and the change may be of low rank for that"
    return [told("training loss at the end over the first one", float(last / first), why)]


def rank_grows(study: Study) -> list[Measure]:
    """The stable rank of each head at the end against early training, and its trend between."""
    measures: list[Measure] = []
    for product in study.main[0].products:
        growth = np.concatenate([_growth(one, product) for one in study.main])
        ratios, trends = growth.T
        measures += [
            at_least(
                f"part of the heads whose {product} has a higher rank at the end than early",
                float((ratios > 0).mean()),
                MOST_HEADS,
                "three of four; half of them would by chance. Early is the end of the first epoch, when "
                "all of the data has been seen (1 % of training where epochs are not known)",
            ),
            at_least(
                f"rank correlation of {product}'s stable rank with the step, mean over heads (lower bound)",
                mean_bounds(trends)[0],
                TREND,
                "1 where it only grows, 0 without a trend, half-way between; lower 95 % bound",
            ),
            told(
                f"factor by which {product}'s stable rank grows, geometric mean over heads",
                float(np.exp(ratios.mean())),
                _course(study.main[0], product),
            ),
        ]
    return [*measures, *judged_at(study)]


def _early(member: TrackedRun) -> int:
    """The place of the first measured step that counts.

    Not the very first one: the change of a single step is the optimiser's doing (Adam's is the sign of one
    batch's gradient), and its rank is that of a batch, which may be high or low.
    """
    return int(np.searchsorted(member.finite_steps, member.epoch_steps or EARLY * member.last_finite_step))


def _growth(member: TrackedRun, product: str) -> np.ndarray:
    """For each head that changed: log(stable rank at the end / early), and the trend between, (heads, 2).

    The trend is taken on a logarithmic clock, on which training has its stages; otherwise a long end, where
    the rate has fallen and next to nothing moves, would decide it.
    """
    early = _early(member)
    steps, ranks = member.finite_steps[early:], member.ranks[product][early:]
    if len(steps) < FEWEST_STEPS:
        since = "its first epoch" if member.epoch_steps else f"the first {EARLY:.0%} of training"
        raise NotRecorded(
            f"{member.folder} has {len(steps)} of its {len(member.finite_steps)} measurements after {since}, "
            f"and a trend takes {FEWEST_STEPS}: train it further, or measure more often"
        )
    clock = np.unique(np.searchsorted(steps, np.geomspace(steps[0], steps[-1], MOMENTS)))
    curves = ranks.reshape(len(steps), -1).T
    changed = [curve for curve in curves if np.isfinite(curve).all() and (curve > 0).all()]
    if not changed:
        raise NotRecorded(f"no head's {product} has changed from early on")
    return np.array([(np.log(curve[-1] / curve[0]), spearman(clock, curve[clock])) for curve in changed])


def _course(member: TrackedRun, product: str) -> str:
    """The mean over heads in words: at first, early, at its lowest, at the end."""
    means = np.nanmean(member.ranks[product], axis=(1, 2))
    lowest, steps = int(means.argmin()), member.finite_steps
    return (
        f"mean over heads: {means[0]:.2f} at step {steps[0]}, {means[_early(member)]:.2f} early, "
        f"{means[lowest]:.2f} at its lowest (step {steps[lowest]}), {means[-1]:.2f} at the end"
    )
