"""Heads of tracked runs as samples, by layer and seed: those that training has changed."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from rankrise.claims.claim import Measure, noted
from rankrise.claims.ranks import STABLE, last_ranks
from rankrise.claims.statistics import Heads
from rankrise.foundations.counted import counted
from rankrise.runs import NotRecorded, Study, TrackedRun


def heads_of(
    runs: Sequence[TrackedRun], values: Callable[[TrackedRun], Sequence[np.ndarray]], what: str
) -> Heads:
    """One value per head of some runs, one run per seed: `values` gives them by layer, [heads], with nan for
    heads that do not count, such as frozen ones, whose change has no rank. Layers in which no head counts are
    left out.
    """
    by_run = [[heads[np.isfinite(heads)] for heads in values(run)] for run in runs]
    layers = list(zip(*by_run, strict=True))
    kept = [place for place, seeds in enumerate(layers) if any(map(len, seeds))]
    if not kept:
        raise NotRecorded(
            f"no head's {what} has changed by more than rounding: it was frozen, or the run has only begun."
        )
    return Heads(tuple(place + 1 for place in kept), [layers[place] for place in kept])


def at_the_end(runs: Sequence[TrackedRun], product: str, kind: str = STABLE) -> Heads:
    """The rank of the change at the end, of heads whose change is not noise there."""

    def last(run: TrackedRun) -> list[np.ndarray]:
        return _telling(last_ranks(run, product, kind), run, product, -1)

    return heads_of(runs, last, product)


def at_steps(steps: Mapping[TrackedRun, int], runs: Sequence[TrackedRun], product: str) -> Heads:
    """The stable rank of the change at a measured step of each run, as `at_the_end` has it."""

    def then(run: TrackedRun) -> list[np.ndarray]:
        place = int(np.searchsorted(run.finite_steps, steps[run]))
        return _telling(run.ranks[product][place], run, product, place)

    return heads_of(runs, then, product)


def _telling(ranks: np.ndarray, run: TrackedRun, product: str, place: int) -> list[np.ndarray]:
    """Ranks at one of the finite steps, nan for heads that have not changed, or by no more than noise."""
    noise = run.below_noise(product)[run.finite][place]
    return list(np.where((ranks > 0) & ~noise, ranks, np.nan))


def of_shared_layers(samples: Sequence[Heads]) -> list[Heads]:
    """Samples that are compared layer by layer, without layers in which no head of one of them counts."""
    shared = set(samples[0].layers).intersection(*(sample.layers for sample in samples))
    if not shared:
        raise NotRecorded("the runs have no layer in common in which training has changed heads of each.")
    return [sample.only(shared) for sample in samples]


def judged_at(study: Study) -> list[Measure]:
    """From how many heads and seeds, and where a run is not finished, up to which step."""
    main = study.main
    heads = sum(len(layer["tracked_heads"]) for one in main for layer in one.layers)
    seeds = counted(len(main), "seed")
    measures = [noted("heads judged", float(heads), f"in {counted(len(main[0].layers), 'layer')}, {seeds}")]
    if not all(one.finished for one in main):
        last = min(one.last_finite_step for one in main)
        why = "the run is not finished, and the verdict is of now"
        measures.append(noted("judged at step", float(last), why))
    return measures
