"""Which tracked runs the claims are about, and how much these have learned, by their training losses."""

from collections.abc import Sequence

import numpy as np

from rankrise.claims.claim import Measure, noted
from rankrise.runs import Run, TrackedRun

HARDLY = 0.5
"""A run whose training loss stays above this fraction of its first one has hardly learned, and is not judged:
what a few steps have changed may be of low rank because it is little."""


def not_trained_for_it(runs: Sequence[Run]) -> str:
    """Why the claims on transformers are not about some runs: they speak of training by a recipe, from random
    weights on images or text, and of runs that have learned."""
    tracked = [run for run in runs if isinstance(run, TrackedRun)]
    if not all(run.recipe for run in tracked):
        return (
            "Trained without a recipe, so it may be a fine-tuning or an adapter; the claim is about training "
            "from random weights. If yours began there, run 'rankrise claims --judge' for a verdict."
        )
    if any(run.recipe.get("data") == "regression" for run in tracked):
        return (
            "Trained on synthetic regression problems; the claim is about images and text. Pass --judge for "
            "a verdict."
        )
    for run in tracked:
        if not run.finished and not len(losses([run])):
            return (
                f"{run.name} is not finished and has recorded no training loss, so it may have learned "
                "nothing yet. Pass --judge for a verdict."
            )
        for first, last in losses([run]):
            if last > HARDLY * first > 0:
                return (
                    f"{run.name} has hardly learned: its training loss fell from {first:.3g} to {last:.3g}, "
                    f"and runs are judged below {HARDLY:g} of the first. Pass --judge for a verdict."
                )
    return ""


def losses(runs: Sequence[TrackedRun]) -> np.ndarray:
    """The first and the last finite training loss of each run that recorded any, [runs, 2]."""
    recorded = [run.steps().get("loss", np.empty(0)) for run in runs]
    finite = [loss[np.isfinite(loss)] for loss in recorded]
    return np.array([(loss[0], loss[-1]) for loss in finite if len(loss)]).reshape(-1, 2)


def how_much(runs: Sequence[TrackedRun]) -> list[Measure]:
    """How far the training loss fell, where recorded and above 0 at first."""
    known = losses(runs)
    if not len(known) or (known[:, 0] <= 0).any():
        return []
    first, last = known.mean(axis=0)
    why = f"{first:.3g} to {last:.3g}; near 1 little is learned, and the change may be of low rank for that"
    return [noted("training loss at the end over the first one", float(last / first), why)]
