"""A whole sweep, over any executor: it resumes, skips what is finished, and goes on when a run fails."""

from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

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
from rankrise.train.sweep.work import TrainRun, failure, outcome, train_run

OnProgress = Callable[[float, str], None]
"""Called with how many runs are done, parts of runs included, and how many are in which state, in words."""
Told = Callable[[SweepRun], None]
"""Called with every run that stands otherwise than before."""
LOOK_EVERY = 0.5
"""Seconds between two looks at the runs' folders."""


def run_sweep(
    plan: SweepPlan,
    folder: str | Path,
    executor: Executor | None = None,
    recipe: str = "",
    progress: OnProgress | None = None,
    work: TrainRun = train_run,
    told: Told | None = None,
) -> list[SweepRun]:
    """Train the runs that a plan wants, into `folder`.

    Runs that are finished there are skipped, interrupted and failed ones go on. The `executor` is any of
    `concurrent.futures`, its workers share this file system; None is one process per run, on this machine.

        settings = read_recipe("vit-digits")
        run_sweep(plan(settings, {"initialisation_scale": [1, 0.5, 0.1]}, seeds=3), "runs/scales")
    """
    sweep = _Sweep(Path(folder), describe(plan, recipe), plan, progress, told)
    refuse_other_sweep(sweep.folder, sweep.described)
    if not sweep.left:
        sweep.write()
    elif executor is None:
        with Processes(most=len(sweep.left)) as executor:
            sweep.work(executor, work)
    else:
        sweep.work(executor, work)
    return [sweep.runs[run.name] for run in sweep.wanted]


class _Sweep:
    """The runs of a sweep and how they stand, on disk whenever that changes."""

    def __init__(
        self,
        folder: Path,
        described: dict[str, Any],
        plan: SweepPlan,
        progress: OnProgress | None,
        told: Told | None,
    ) -> None:
        self.folder, self.described, self.progress, self.told = folder, described, progress, told
        self.wanted = plan.wanted
        self.runs = {run.name: standing(folder, run) for run in plan.runs}
        self.left = [run for run in plan.wanted if self.runs[run.name].state != "finished"]

    def work(self, executor: Executor, work: TrainRun) -> None:
        """Give all that is left to the executor, and note how each ends."""
        before = {run.name: written_at(self.folder / run.name) for run in self.left}
        futures: dict[Future[dict[str, str]], str] = {}
        here = str(Path.cwd())
        self.write()
        try:
            for run in self.left:
                self._change(run.name, state="waiting")
                arguments = (work, run.settings.to_dict(), str(self.folder / run.name), here)
                try:
                    futures[executor.submit(outcome, *arguments)] = run.name
                except Exception as error:  # the executor is broken
                    self._change(run.name, **failure(error))
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
        changed = replace(self.runs[name], **changes)
        if changed != self.runs[name]:
            self.runs[name] = changed
            self.write()
            if self.told is not None:
                self.told(changed)

    def _show(self) -> None:
        if self.progress is not None:
            wanted = [self.runs[run.name] for run in self.wanted]
            states = Counter(run.state for run in wanted)
            ended = states["finished"] + states["failed"] + states["interrupted"]
            parts = [part_done(self.folder / run.name) for run in wanted if run.state == "running"]
            self.progress(
                ended + sum(parts), ", ".join(f"{count} {state}" for state, count in states.items())
            )


def _ending(future: Future[dict[str, str]]) -> dict[str, str]:
    if future.cancelled():
        return {"state": "interrupted", "reason": "the executor cancelled it", "trace": ""}
    error = future.exception()
    return future.result() if error is None else failure(error)
