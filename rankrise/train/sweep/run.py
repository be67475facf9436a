"""A sweep: its runs, planned before anything starts, then trained over any executor.

It resumes, skips what is finished, and goes on when a run fails. Its folder holds the runs, and `sweep.json`,
which lists them and how they ended.
"""

import itertools
import re
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import chdir, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import is_taken, read_json, write_json
from rankrise.foundations.settings import as_json, names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.folder import RUN, STEPS, SWEEP, has_run, last_step, read_run
from rankrise.train._begun import run_in
from rankrise.train._loop import Interrupted, train
from rankrise.train.sweep.workers import Processes

FORMAT = "rankrise-sweep/1"
LOOK_EVERY = 0.5
"""Seconds between two looks at the runs' folders."""
State = Literal["waiting", "running", "finished", "interrupted", "failed"]
TrainRun = Callable[[dict[str, Any], str], None]
"""Trains with some settings in a folder. Workers import it by name, so it is a function of a module."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    name: str
    """Name of its folder: what varies, "initialisation_scale=0.5,seed=1", or the choice."""
    changed: dict[str, Any]
    """Settings that the sweep sets."""
    settings: TrainSettings


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a sweep, and those that are to be trained now."""

    settings: TrainSettings
    over: dict[str, Any]
    """Differences between the runs, kept in `sweep.json`: `sets` and `seeds`, or `choices`."""
    runs: list[PlannedRun]
    wanted: list[PlannedRun]


@dataclass(frozen=True)
class SweepRun:
    """How a run of a sweep stands."""

    name: str
    """Its folder inside the sweep's."""
    settings: dict[str, Any]
    """Settings that the sweep sets."""
    state: State
    reason: str = ""
    """Why it failed or stopped."""
    trace: str = ""
    """The traceback of an unexpected error."""


def plan(
    settings: TrainSettings, sets: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] = 1
) -> SweepPlan:
    """Every combination of the values in `sets`, seeds fastest. Names carry only what varies, and the seed.

    >>> sets = {"initialisation_scale": [1, 0.5], "layers": [2]}
    >>> [run.name for run in plan(TrainSettings(), sets, [0, 7]).runs]
    ['initialisation_scale=1,seed=0', 'initialisation_scale=1,seed=7',
     'initialisation_scale=0.5,seed=0', 'initialisation_scale=0.5,seed=7']
    """
    if "seed" in sets:
        raise RankriseError("the sweep sets 'seed' among its values: pass the seeds as seeds.")
    drawn = range(seeds) if isinstance(seeds, int) else seeds
    for name, values in {**sets, "seeds": drawn}.items():
        if not values:
            raise RankriseError(f"the sweep gives no value for {name}: pass one or more.")
    varied = [name for name in sets if len(sets[name]) > 1]
    over: dict[str, list[Any]] = {name: [] for name in (*sets, "seed")}
    runs: dict[str, PlannedRun] = {}
    for values in itertools.product(*sets.values(), drawn):
        wanted = settings.changed(dict(zip(over, values, strict=True)), "the sweep")
        changed = {name: as_json(wanted)[name] for name in over}
        name = ",".join(f"{name}={_word(changed[name])}" for name in (*varied, "seed"))
        if name in runs:
            raise RankriseError(f"two runs of the sweep would be {name}: pass every value and seed once.")
        runs[name] = PlannedRun(name, changed, wanted)
        for setting, value in changed.items():
            if value not in over[setting]:
                over[setting].append(value)
    every = list(runs.values())
    return SweepPlan(settings, {"sets": over, "seeds": over.pop("seed")}, every, every)


def plan_choices(
    settings: TrainSettings, choices: Mapping[str, Mapping[str, Any]], only: str | None = None
) -> SweepPlan:
    """One run per choice of a table, with the settings that it changes. `only` names the choices to train,
    separated by commas; None is all.

    >>> table = {"base": {}, "biases": {"qkv_bias": True}}
    >>> planned = plan_choices(TrainSettings(), table, only="biases")
    >>> [(run.name, run.settings.qkv_bias) for run in planned.runs], [run.name for run in planned.wanted]
    ([('base', False), ('biases', True)], ['biases'])
    """
    runs = {}
    for name, changes in choices.items():
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise RankriseError(
                f"a choice is called {name!r}, which cannot name a folder: use letters, digits and -+_."
            )
        wanted = settings.changed(changes, f"the choice {name}")
        runs[name] = PlannedRun(name, {one: as_json(wanted)[one] for one in changes}, wanted)
    names = list(runs) if only is None else [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in names if name not in runs]
    if unknown or not names:
        raise RankriseError(
            f"--only is {only!r}, but the recipe's choices are {', '.join(runs)}: pass some of them."
        )
    over = {"choices": {run.name: run.changed for run in runs.values()}}
    return SweepPlan(settings, over, list(runs.values()), [runs[name] for name in dict.fromkeys(names)])


def read_sets(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of `--set`, separated by commas, or by semicolons if a value is itself a list.

    >>> read_sets(["initialisation_scale=1,0.5", "spectra_epochs=1,2;5"])
    {'initialisation_scale': ['1', '0.5'], 'spectra_epochs': ['1,2', '5']}
    """
    types = get_type_hints(TrainSettings)
    sets: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip()
        if not equals or name in sets:
            raise RankriseError(f"--set is {word!r}: pass SETTING=VALUE,VALUE, with each setting once.")
        between = ";" if get_origin(types.get(name)) is tuple else ","
        sets[name] = [value.strip() for value in values.split(between) if value.strip()]
    return sets


def read_seeds(text: str) -> int | list[int]:
    """How many seeds from 0 on, or the seeds, separated by commas.

    >>> read_seeds("3"), read_seeds("0, 7"), read_seeds("7,")
    (3, [0, 7], [7])
    """
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else int(text)
    except ValueError:
        raise RankriseError(
            f"--seeds is {text!r}: pass how many, or the seeds separated by commas."
        ) from None


def _word(value: Any) -> str:
    """A value as part of a folder's name."""
    if isinstance(value, list):
        return "+".join(map(_word, value))
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "-", text)


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

    write()
    begun = time.time()
    futures: dict[Future[dict[str, str]], str] = {}
    with nullcontext(executor) if executor is not None else Processes(most=len(left)) as workers:
        try:
            for run in left:
                change(run.name, state="waiting")
                arguments = (work, run.settings.to_dict(), str(folder / run.name), str(Path.cwd()))
                try:
                    futures[workers.submit(_outcome, *arguments)] = run.name
                except Exception as error:  # the executor is broken
                    change(run.name, **_failure(error))
            pending = set(futures)
            while pending:
                ended, pending = wait(pending, timeout=LOOK_EVERY, return_when=FIRST_COMPLETED)
                for future in ended:
                    change(futures[future], **_ending(future))
                for future in pending:
                    # A worker on another machine may have begun to write the record.
                    paths = [folder / futures[future] / name for name in (RUN, STEPS)]
                    written = any(path.exists() and path.stat().st_mtime > begun for path in paths)
                    if future.running() or written:
                        change(futures[future], state="running")
                if progress is not None:
                    states = Counter(runs[run.name].state for run in plan.wanted)
                    done: float = states["finished"] + states["failed"] + states["interrupted"]
                    done += sum(part_done(folder / name) for name in runs if runs[name].state == "running")
                    progress(done, ", ".join(f"{count} {state}" for state, count in states.items()))
        except BaseException:
            for future in futures:
                future.cancel()
            for name in [name for name, run in runs.items() if run.state == "running"]:
                change(name, state="interrupted", reason="the sweep was stopped")
            raise
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


def _outcome(work: TrainRun, settings: dict[str, Any], folder: str, here: str) -> dict[str, str]:
    """Train a run in a worker. Paths are relative to `here`, the folder in which the sweep was started."""
    try:
        with chdir(here):
            work(settings, folder)
    except Interrupted as stopped:
        return {"state": "interrupted", "reason": str(stopped)}
    except RankriseError as error:
        return {"state": "failed", "reason": str(error)}
    except Exception as error:
        return _failure(error)
    return {"state": "finished"}


def _ending(future: Future[dict[str, str]]) -> dict[str, str]:
    if future.cancelled():
        return {"state": "interrupted", "reason": "the executor cancelled it"}
    error = future.exception()
    return future.result() if error is None else _failure(error)


def _failure(error: BaseException) -> dict[str, str]:
    """How a run ended by an unexpected error."""
    reason = f"{type(error).__name__}: {first_line(error)}"
    return {"state": "failed", "reason": reason, "trace": "".join(traceback.format_exception(error))}
