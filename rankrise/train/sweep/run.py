"""A whole sweep, over any executor: it resumes, skips what is finished, and goes on when a run fails.

Its folder holds the runs, and `sweep.json`, which lists them and how they ended.
"""

import time
import traceback
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import chdir
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import is_taken, read_json, write_json
from rankrise.foundations.settings import names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.folder import RUN, STEPS, SWEEP, has_run, last_step, read_run
from rankrise.train._begun import run_in
from rankrise.train._loop import Interrupted, train
from rankrise.train.sweep.plan import PlannedRun, SweepPlan
from rankrise.train.sweep.processes import Processes

FORMAT = "rankrise-sweep/1"
LOOK_EVERY = 0.5
"""Seconds between two looks at the runs' folders."""
State = Literal["waiting", "running", "finished", "interrupted", "failed"]
TrainRun = Callable[[dict[str, Any], str], None]
"""Trains with some settings in a folder. Workers import it by name, so it is a function of a module."""


@dataclass(frozen=True)
class SweepRun:
    """How a run of a sweep stands."""

    name: str
    """Its folder inside the sweep's."""
    settings: dict[str, Any]
    """What the sweep sets."""
    state: State
    reason: str = ""
    """Why it failed or stopped."""
    trace: str = ""
    """The traceback of an unexpected error."""


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
    folder = Path(folder)
    refuse_other_sweep(folder, plan)
    described = {"format": FORMAT, "recipe": recipe, "settings": plan.settings.to_dict(), **plan.over}
    runs = {run.name: standing(folder, run) for run in plan.runs}
    left = [run for run in plan.wanted if runs[run.name].state != "finished"]

    def write() -> None:
        write_json(folder / SWEEP, described | {"runs": [asdict(run) for run in runs.values()]})

    def change(name: str, **changes: Any) -> None:
        run = replace(runs[name], **changes)
        if run != runs[name]:
            runs[name] = run
            write()
            if changed is not None:
                changed(run)

    def show() -> None:
        if progress is not None:
            states = Counter(runs[run.name].state for run in plan.wanted)
            ended = states["finished"] + states["failed"] + states["interrupted"]
            parts = sum(part_done(folder / name) for name, run in runs.items() if run.state == "running")
            progress(ended + parts, ", ".join(f"{count} {state}" for state, count in states.items()))

    def train_all(executor: Executor) -> None:
        begun = time.time()
        futures: dict[Future[dict[str, str]], str] = {}
        try:
            for run in left:
                change(run.name, state="waiting")
                arguments = (work, run.settings.to_dict(), str(folder / run.name), str(Path.cwd()))
                try:
                    futures[executor.submit(_outcome, *arguments)] = run.name
                except Exception as error:  # the executor is broken
                    change(run.name, **_failure(error))
            pending = set(futures)
            while pending:
                ended, pending = wait(pending, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
                for future in ended:
                    change(futures[future], **_ending(future))
                for future in pending:
                    if future.running() or written_since(folder / futures[future], begun):
                        change(futures[future], state="running")
                show()
        except BaseException:
            for future in futures:
                future.cancel()
            for name in [name for name, run in runs.items() if run.state == "running"]:
                change(name, state="interrupted", reason="the sweep was stopped")
            raise

    write()
    if executor is not None:
        train_all(executor)
    elif left:
        with Processes(most=len(left)) as processes:
            train_all(processes)
    return [runs[run.name] for run in plan.wanted]


def refuse_other_sweep(folder: Path, plan: SweepPlan) -> None:
    """Refuse a folder that holds anything but this sweep or a part of it, and name the first difference."""
    if not (folder / SWEEP).exists():
        if is_taken(folder):
            raise RankriseError(f"{folder} exists and is not a sweep: pass a new or an empty folder.")
        return
    kept = read_json(folder / SWEEP)
    for name, value in plan.settings.to_dict().items():
        before = kept.get("settings", {}).get(name)
        if before != value and name not in names_of(TrainSettings, "machine"):
            raise RankriseError(
                f"{folder} holds a sweep with {name} {before}, not {value}: pass the same settings to resume "
                "it, or another folder."
            )
    planned = {run.name: run.changed for run in plan.runs}
    for run in kept.get("runs", []):
        if planned.get(run["name"]) != run["settings"]:
            raise RankriseError(
                f"{folder} holds the run {run['name']} ({run['settings']}), which this sweep lacks or has "
                "with other settings: pass the same values, or more to extend it, or another folder."
            )


def standing(folder: Path, run: PlannedRun) -> SweepRun:
    """How a run stands, from its own folder."""
    if not has_run(folder / run.name):
        return SweepRun(run.name, run.changed, "waiting")
    try:
        found = run_in(folder / run.name, run.settings) or {}
    except RankriseError:  # another run; its training will say so
        found = {}
    return SweepRun(run.name, run.changed, "finished" if found.get("finished") else "interrupted")


def part_done(folder: Path) -> float:
    """The part of its steps that an unfinished run has recorded, between 0 and 1."""
    try:
        total = read_run(folder, "tracked").get("extra", {}).get("total_steps", 0)
        return min(1.0, last_step(folder / STEPS) / total) if total else 0.0
    except (OSError, ValueError, KeyError):  # it is being written
        return 0.0


def written_since(folder: Path, begun: float) -> bool:
    """Whether a worker, perhaps on another machine, has begun to write a run's record."""
    paths = [folder / name for name in (RUN, STEPS)]
    return any(path.exists() and path.stat().st_mtime > begun for path in paths)


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
