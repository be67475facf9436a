"""A whole sweep, over any executor: it resumes, skips what is finished, and goes on when a run fails."""

import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._loop import Interrupted, train
from rankrise.train.sweep.plan import SweepPlan
from rankrise.train.sweep.processes import Processes
from rankrise.train.sweep.record import (
    SweepRun,
    describe,
    part_done,
    refuse_other_sweep,
    standing,
    write_sweep,
    written_at,
)

LOOK_EVERY = 0.5
"""Seconds between two looks at the runs' folders."""
TrainRun = Callable[[dict[str, Any], str], None]
"""Trains with some settings in a folder. Workers import it by name, so it is a function of a module."""


def train_run(settings: dict[str, Any], folder: str) -> None:
    """Train, or resume, the run in `folder`."""
    train(TrainSettings(**settings), folder)


def run_sweep(
    plan: SweepPlan,
    folder: str | Path,
    executor: Executor | None = None,
    recipe: str = "",
    progress: Callable[[float, str], None] | None = None,
    work: TrainRun = train_run,
    changed: Callable[[SweepRun], None] | None = None,
) -> list[SweepRun]:
    """Train the runs that a plan wants, into `folder`; finished ones are skipped, others resumed.

        settings = read_recipe("vit-digits")
        run_sweep(plan(settings, {"initialisation_scale": [1, 0.5, 0.1]}, seeds=3), "runs/scales")

    Args:
        plan: the runs.
        folder: the sweep's folder, new or to be resumed.
        executor: any of `concurrent.futures` whose workers share this file system; None is one process per
            run on this machine.
        recipe: the recipe's name, kept in `sweep.json`.
        progress: called with how many runs are done, parts included, and the states in words.
        work: trains one run.
        changed: called with every run whose state changes.
    """
    sweep = _Sweep(Path(folder), plan, recipe, progress, changed)
    refuse_other_sweep(sweep.folder, sweep.described)
    if not sweep.left:
        sweep.write()
    elif executor is None:
        with Processes(most=len(sweep.left)) as executor:
            sweep.work(executor, work)
    else:
        sweep.work(executor, work)
    return [sweep.runs[run.name] for run in plan.wanted]


class _Sweep:
    """The runs of a sweep and their states, written to disk whenever they change."""

    def __init__(
        self,
        folder: Path,
        plan: SweepPlan,
        recipe: str,
        progress: Callable[[float, str], None] | None,
        changed: Callable[[SweepRun], None] | None,
    ) -> None:
        self.folder, self.described = folder, describe(plan, recipe)
        self.progress, self.changed = progress, changed
        self.wanted = plan.wanted
        self.runs = {run.name: standing(folder, run) for run in plan.runs}
        self.left = [run for run in plan.wanted if self.runs[run.name].state != "finished"]

    def work(self, executor: Executor, work: TrainRun) -> None:
        """Submit everything that is left, and record how each run ends."""
        before = {run.name: written_at(self.folder / run.name) for run in self.left}
        futures: dict[Future[dict[str, str]], str] = {}
        here = str(Path.cwd())
        self.write()
        try:
            for run in self.left:
                self._change(run.name, state="waiting")
                arguments = (work, run.settings.to_dict(), str(self.folder / run.name), here)
                try:
                    futures[executor.submit(_outcome, *arguments)] = run.name
                except Exception as error:  # the executor is broken
                    self._change(run.name, **_failure(error))
            pending = set(futures)
            while pending:
                ended, pending = wait(pending, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
                for future in ended:
                    self._change(futures[future], **_ending(future))
                for future in pending:
                    name = futures[future]
                    if future.running() or written_at(self.folder / name) != before[name]:
                        self._change(name, state="running")
                self._show()
        except BaseException:
            for future in futures:
                future.cancel()
            for name, stopped in self.runs.items():
                if stopped.state == "running":
                    self._change(name, state="interrupted", reason="the sweep was stopped")
            raise

    def write(self) -> None:
        write_sweep(self.folder, self.described, list(self.runs.values()))

    def _change(self, name: str, **changes: Any) -> None:
        run = replace(self.runs[name], **changes)
        if run != self.runs[name]:
            self.runs[name] = run
            self.write()
            if self.changed is not None:
                self.changed(run)

    def _show(self) -> None:
        if self.progress is not None:
            wanted = [self.runs[run.name] for run in self.wanted]
            states = Counter(run.state for run in wanted)
            ended = states["finished"] + states["failed"] + states["interrupted"]
            parts = sum(part_done(self.folder / run.name) for run in wanted if run.state == "running")
            self.progress(ended + parts, ", ".join(f"{count} {state}" for state, count in states.items()))


def _outcome(work: TrainRun, settings: dict[str, Any], folder: str, here: str) -> dict[str, str]:
    """Train a run in a worker. Paths are relative to `here`, the folder in which the sweep was started."""
    try:
        with chdir(here):
            work(settings, folder)
    except Interrupted as stopped:
        return {"state": "interrupted", "reason": str(stopped), "trace": ""}
    except RankriseError as error:
        return {"state": "failed", "reason": str(error), "trace": ""}
    except Exception as error:
        return _failure(error)
    return {"state": "finished", "reason": "", "trace": ""}


def _ending(future: Future[dict[str, str]]) -> dict[str, str]:
    if future.cancelled():
        return {"state": "interrupted", "reason": "the executor cancelled it", "trace": ""}
    error = future.exception()
    return future.result() if error is None else _failure(error)


def _failure(error: BaseException) -> dict[str, str]:
    """How a run ended by an unexpected error."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    return {"state": "failed", "reason": reason, "trace": "".join(traceback.format_exception(error))}
