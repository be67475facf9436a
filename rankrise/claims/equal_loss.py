"""When runs had learned equally much: the step at which each reached a training loss that all reach."""

from collections.abc import Sequence

import numpy as np

from rankrise.runs import NotRecorded, TrackedRun

WINDOW = 0.05
"""The loss at a step is the mean of those recorded in this part of the training before it."""


def steps_of_equal_loss(runs: Sequence[TrackedRun]) -> dict[TrackedRun, int]:
    """By run: the first measured step at which its loss is down to the highest that any of them ended at."""
    losses = {run: smoothed(run) for run in runs}
    level = max(loss[-1] for _, loss in losses.values())
    reached = {run: int(steps[np.argmax(loss <= level)]) for run, (steps, loss) in losses.items()}
    return {run: _measured(run, step) for run, step in reached.items()}


def _measured(run: TrackedRun, step: int) -> int:
    """The first measured step from a step on, or the last."""
    place = int(np.searchsorted(run.finite_steps, step))
    return int(run.finite_steps[min(place, len(run.finite_steps) - 1)])


def smoothed(run: TrackedRun) -> tuple[np.ndarray, np.ndarray]:
    """The steps with a training loss, and the loss there without most of its noise."""
    recorded = run.steps()
    loss = recorded.get("loss", np.empty(0))
    steps, loss = recorded["step"][np.isfinite(loss)], loss[np.isfinite(loss)]
    if not len(steps) or not len(run.finite_steps):
        raise NotRecorded(f"{run.folder} has no training loss, or no measured step yet.")
    totals = np.concatenate([[0.0], np.cumsum(loss)])
    ends = np.arange(1, len(steps) + 1)
    starts = np.searchsorted(steps, steps - WINDOW * steps[-1])
    return steps, (totals[ends] - totals[starts]) / (ends - starts)
