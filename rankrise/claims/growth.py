"""The paper on tracked runs: the rank of the change grows during training."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from rankrise.claims.claim import Measure, at_least, by_each_choice, noted
from rankrise.claims.clocks import Clock, interpolated, linear, logarithmic
from rankrise.claims.heads import heads_of, judged_at
from rankrise.claims.ranks import OTHERS, STABLE, ranks_of
from rankrise.claims.statistics import Estimate, Heads, spearman
from rankrise.foundations.counted import counted
from rankrise.runs import NotRecorded, Study, TrackedRun

EARLY = 0.01
MOST_HEADS = 0.75
TREND = 0.5
FEWEST_STEPS = 8
CHANCE = (0.5, 0.0)
"""Of both thresholds, what heads without a trend would give."""
STEP_1, FIRST_EPOCH, WARM_UP = "step 1", "the first epoch", "the end of the warm-up"
"""What may count as early."""
CHOICES: dict[str, dict[str, Any]] = {
    "a linear clock": {"clock": linear},
    "an interpolated clock": {"clock": interpolated},
    "a clock from step 1": {"since": STEP_1},
    "a clock from the end of the warm-up": {"since": WARM_UP},
    "the worst layer": {"over_layers": Heads.smallest_layer},
    "a threshold at chance level": {"thresholds": CHANCE},
    **{kind: {"kind": kind} for kind in OTHERS},
}


def rank_grows(study: Study) -> list[Measure]:
    """The stable rank of each head at the end against early training, and its trend between."""
    measures: list[Measure] = []
    for product in study.main[0].products:
        factors, _ = growth(study.main, product)
        measures += [
            noted("factor by which the stable rank grows", one.mapped(np.exp), "", part=product, layer=layer)
            for layer, one in factors.by_layer().items()
        ]
        measures += by_each_choice(partial(_deciding, study.main, product), _choices(study.main))
        measures.append(
            noted(
                "factor by which the stable rank grows, geometric mean over heads",
                factors.mean().mapped(np.exp),
                _course(study.main[0], product),
                part=product,
            )
        )
    noisy = sum(len(run.noisy_steps) for run in study.main)
    if noisy:
        why = "there the change of most heads is the rounding of the stored weights"
        measures.append(noted("measured steps left out as noise", float(noisy), why))
    return [*measures, *judged_at(study)]


def _deciding(
    runs: Sequence[TrackedRun],
    product: str,
    kind: str = STABLE,
    since: str = FIRST_EPOCH,
    clock: Clock = logarithmic,
    over_layers: Callable[[Heads], Estimate] = Heads.mean,
    thresholds: tuple[float, float] = (MOST_HEADS, TREND),
) -> list[Measure]:
    _, grown = growth(runs, product, since, kind)
    return [
        at_least(
            "share of heads whose stable rank is higher at the end than early",
            over_layers(grown),
            thresholds[0],
            "three of four; half of them would by chance. Early is the end of the first epoch, when "
            "all of the data has been seen (1 % of training where epochs are not known)",
            part=product,
        ),
        at_least(
            "how steadily the stable rank rises (Spearman correlation with the step), mean over heads",
            over_layers(trends(runs, product, since, clock, kind)),
            thresholds[1],
            "1 where it only rises, 0 without a trend, half-way between; at up to 40 of the measurements, "
            "spread over a logarithmic clock",
            part=product,
        ),
    ]


def growth(
    runs: Sequence[TrackedRun], product: str, since: str = FIRST_EPOCH, kind: str = STABLE
) -> tuple[Heads, Heads]:
    """Of each head: log(rank at the end / early), and whether it has grown, 1 or 0."""

    def factors(run: TrackedRun) -> list[np.ndarray]:
        _, ranks = _changed(run, product, since, kind)
        return list(np.log(ranks[-1] / ranks[0]))

    heads = heads_of(runs, factors, product)
    return heads, heads.mapped(lambda values: (values > 0).astype(float))


def trends(
    runs: Sequence[TrackedRun],
    product: str,
    since: str = FIRST_EPOCH,
    clock: Clock = logarithmic,
    kind: str = STABLE,
) -> Heads:
    """Of each head: the rank correlation of its rank with the step, at the moments of a clock."""

    def trend(run: TrackedRun) -> list[np.ndarray]:
        ranks = clock(*_changed(run, product, since, kind))
        moments = np.arange(len(ranks))
        correlations = np.full(ranks.shape[1:], np.nan)
        for layer, head in zip(*np.isfinite(ranks[0]).nonzero(), strict=True):
            correlations[layer, head] = spearman(moments, ranks[:, layer, head])
        return list(correlations)

    return heads_of(runs, trend, product)


def _clear(run: TrackedRun, product: str, kind: str = STABLE) -> tuple[np.ndarray, np.ndarray]:
    """The steps at which most heads' change is more than rounding, and the ranks there."""
    steps, ranks = ranks_of(run, product, kind)
    clear = ~np.isin(steps, run.noisy_steps)
    return steps[clear], ranks[clear]


def _choices(runs: Sequence[TrackedRun]) -> dict[str, dict[str, Any]]:
    """Without the warm-up where the recipe has none."""
    warmed = all(run.warm_up_steps for run in runs)
    return {name: how for name, how in CHOICES.items() if warmed or how.get("since") != WARM_UP}


def _early(run: TrackedRun, steps: np.ndarray, since: str = FIRST_EPOCH) -> int:
    """The place of the first of some steps that counts.

    Not the very first one: the change of a single step is the optimiser's doing (Adam's is the sign of one
    batch's gradient), and its rank is that of a batch, which may be high or low.
    """
    wanted = {
        STEP_1: 0,
        FIRST_EPOCH: run.epoch_steps or EARLY * run.last_finite_step,
        WARM_UP: run.warm_up_steps,
    }
    return int(np.searchsorted(steps, wanted[since]))


def _changed(run: TrackedRun, product: str, since: str, kind: str = STABLE) -> tuple[np.ndarray, np.ndarray]:
    """The steps from early on, and the ranks there, [steps, layers, heads]; nan for a head that is once
    unchanged."""
    steps, ranks = _clear(run, product, kind)
    early = _early(run, steps, since)
    steps, ranks = steps[early:], ranks[early:]
    if len(ranks) < FEWEST_STEPS:
        after = f"the first {100 * EARLY:.0f} % of training"
        if run.epoch_steps or since != FIRST_EPOCH:
            after = "its first epoch" if since == FIRST_EPOCH else since
        after += " that are more than rounding noise" if len(run.noisy_steps) else ""
        what = "" if kind == STABLE else f" of {kind}"
        raise NotRecorded(
            f"{run.folder} has {len(ranks)} of its {counted(len(run.finite_steps), 'measurement')}{what} "
            f"after {after}, and a trend takes {FEWEST_STEPS}: train it further, or measure more often."
        )
    return steps, np.where((np.isfinite(ranks) & (ranks > 0)).all(axis=0), ranks, np.nan)


def _course(run: TrackedRun, product: str) -> str:
    """The mean over heads in words: at first, early, at its lowest, at the end."""
    steps, ranks = _clear(run, product)
    means = np.nanmean(ranks, axis=(1, 2))
    lowest = int(means.argmin())
    return (
        f"mean over heads: {means[0]:.2f} at step {steps[0]}, {means[_early(run, steps)]:.2f} early, "
        f"{means[lowest]:.2f} at its lowest (step {steps[lowest]}), {means[-1]:.2f} at the end"
    )
