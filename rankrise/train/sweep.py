"""Sweep: one recipe at several values and seeds, or its choices, as runs in one folder."""

import itertools
import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, as_completed
from contextlib import chdir, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._begun import run_in
from rankrise.train._loop import Interrupted, train
from rankrise.train._workers import Processes


@dataclass(frozen=True)
class SweepRun:
    """A run of a sweep, and how it stands."""

    name: str
    """Name of its folder: what varies, "initialisation_scale=0.5,seed=1", or the choice."""
    settings: TrainSettings
    state: str = "waiting"
    """Or finished, interrupted or failed."""
    reason: str = ""
    """Why it failed or stopped."""


def plan(
    settings: TrainSettings, sets: Mapping[str, Sequence[Any]], seeds: int | Sequence[int] = 1
) -> list[SweepRun]:
    """Every combination of the values in `sets`, seeds fastest. Names carry only what varies, and the seed.

    >>> sets = {"initialisation_scale": [1, 0.5], "layers": [2]}
    >>> [run.name for run in plan(TrainSettings(), sets, [0, 7])]
    ['initialisation_scale=1,seed=0', 'initialisation_scale=1,seed=7',
     'initialisation_scale=0.5,seed=0', 'initialisation_scale=0.5,seed=7']
    """
    if "seed" in sets:
        raise RankriseError("the sweep sets 'seed' among its values: pass the seeds as seeds.")
    drawn = range(seeds) if isinstance(seeds, int) else seeds
    varied = [name for name in sets if len(sets[name]) > 1]
    runs = {}
    for values in itertools.product(*sets.values(), drawn):
        wanted = settings.changed(dict(zip((*sets, "seed"), values, strict=True)), "the sweep")
        name = ",".join(f"{name}={_word(getattr(wanted, name))}" for name in (*varied, "seed"))
        runs[name] = SweepRun(name, wanted)
    return list(runs.values())


def plan_choices(
    settings: TrainSettings, choices: Mapping[str, Mapping[str, Any]], only: str | None = None
) -> list[SweepRun]:
    """One run per choice of a table, or of those that `only` names, separated by commas."""
    runs = []
    for name in choices if only is None else map(str.strip, only.split(",")):
        if name not in choices:
            raise RankriseError(f"--only has {name!r}, but the recipe's choices are {', '.join(choices)}.")
        runs.append(SweepRun(name, settings.changed(choices[name], f"the choice {name}")))
    return runs


def read_sets(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of `--set`, separated by commas, or by semicolons if a value is itself a list."""
    types = get_type_hints(TrainSettings)
    sets: dict[str, list[str]] = {}
    for word in words:
        name, _, values = word.partition("=")
        between = ";" if get_origin(types.get(name)) is tuple else ","
        sets[name] = [value.strip() for value in values.split(between) if value.strip()]
        if not sets[name]:
            raise RankriseError(f"--set is {word!r}: pass SETTING=VALUE,VALUE.")
    return sets


def read_seeds(text: str) -> int | list[int]:
    """How many seeds from 0 on, or the seeds, separated by commas: "3", "0,7" or "7,"."""
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else int(text)
    except ValueError:
        raise RankriseError(f"--seeds is {text!r}: pass how many, or seeds with commas.") from None


def _word(value: Any) -> str:
    """A value as part of a folder's name."""
    if isinstance(value, tuple):
        return "+".join(map(_word, value))
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "-", text)


def run_sweep(
    runs: Sequence[SweepRun],
    folder: str | Path,
    executor: Executor | None = None,
    ended: Callable[[SweepRun], None] | None = None,
) -> list[SweepRun]:
    """Train runs into a folder; finished ones are skipped, others resumed. Returns how each stands.

    `executor` is any of `concurrent.futures`; None is one process per run here. `ended` gets what ends.
    """
    folder = Path(folder)
    found = {run.name: standing(folder, run) for run in runs}
    left = [run for run in found.values() if run.state != "finished"]
    with nullcontext(executor) if executor is not None else Processes(most=len(left)) as workers:
        here = Path.cwd()
        futures = {workers.submit(_train, run.settings, folder / run.name, here): run for run in left}
        try:
            for future in as_completed(futures):
                try:
                    state, reason = future.result()
                except Exception as error:  # its process was killed, or the executor is broken
                    state, reason = "failed", _reason(error)
                run = replace(futures[future], state=state, reason=reason)
                found[run.name] = run
                if ended is not None:
                    ended(run)
        finally:
            for future in futures:
                future.cancel()
    return list(found.values())


def standing(folder: Path, run: SweepRun) -> SweepRun:
    """How a run stands, from its own folder; a run with other settings there is refused."""
    info = run_in(folder / run.name, run.settings)
    if info is None:
        return run
    return replace(run, state="finished" if info.get("finished") else "interrupted")


def _train(settings: TrainSettings, folder: Path, here: Path) -> tuple[str, str]:
    """Train a run in a worker, with paths relative to `here`; returns its state and the reason for it."""
    try:
        with chdir(here):
            train(settings, folder)
    except Interrupted as stopped:
        return "interrupted", str(stopped)
    except Exception as error:
        if not isinstance(error, RankriseError):
            traceback.print_exc()
        return "failed", _reason(error)
    return "finished", ""


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, RankriseError) else f"{type(error).__name__}: {first_line(error)}"
