"""Which runs a sweep has, checked before anything starts: every combination of values, or a table."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import as_json
from rankrise.foundations.spelling import did_you_mean
from rankrise.recipes.train_settings import TrainSettings

MOST_RUNS = 10_000
"""Runs in a sweep: more than anybody trains, and few enough to name."""


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    name: str
    """Of its folder: what varies, "initialisation_scale=0.5,seed=1", or the name that a table gives it."""
    changed: dict[str, Any]
    """What the sweep sets."""
    settings: TrainSettings


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a sweep, and those of them that are to be trained now."""

    settings: TrainSettings
    over: dict[str, Any]
    """What the runs differ in, as `sweep.json` has it: `sets` and `seeds`, or `choices`."""
    runs: list[PlannedRun]
    wanted: list[PlannedRun]


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
    for name, values in sets.items():
        if not values:
            raise RankriseError(f"the sweep gives no value for {name}: pass one or more.")
    count = math.prod(map(len, sets.values())) * (seeds if isinstance(seeds, int) else len(seeds))
    if count > MOST_RUNS:
        raise RankriseError(f"the sweep has {count:,} runs: pass values and seeds for at most {MOST_RUNS:,}.")
    seeds = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not seeds:
        raise RankriseError("the sweep has no seed: pass a number of seeds of 1 or more, or a list of seeds.")
    runs: dict[str, PlannedRun] = {}
    for values in itertools.product(*sets.values(), seeds):
        given = dict(zip((*sets, "seed"), values, strict=True))
        wanted = settings.changed(given, "the sweep")
        changed = {name: as_json(wanted)[name] for name in given}
        varied = [name for name in sets if len(sets[name]) > 1]
        name = ",".join(f"{name}={_word(changed[name])}" for name in (*varied, "seed"))
        if name in runs:
            raise RankriseError(f"two runs of the sweep would be {name}: pass every value and seed once.")
        runs[name] = PlannedRun(name, changed, wanted)
    every = list(runs.values())
    over = {name: _distinct(run.changed[name] for run in every) for name in (*sets, "seed")}
    numbers = over.pop("seed")
    return SweepPlan(settings, {"sets": over, "seeds": numbers}, every, every)


def plan_choices(
    settings: TrainSettings, choices: Mapping[str, Mapping[str, Any]], only: str | None = None
) -> SweepPlan:
    """One run per choice of a table: each has the settings but for what its choice changes. `only` names
    those that are wanted, with commas between them; all without it.

    >>> table = {"base": {}, "biases": {"qkv_bias": True}}
    >>> planned = plan_choices(TrainSettings(), table, only="biases")
    >>> [(run.name, run.settings.qkv_bias) for run in planned.runs], [run.name for run in planned.wanted]
    ([('base', False), ('biases', True)], ['biases'])
    """
    runs = []
    for name, changes in choices.items():
        if not re.fullmatch(r"\w[\w.+-]*", name):
            raise RankriseError(
                f"a choice is called {name!r}, which cannot name a folder: pass letters, digits, "
                "'-', '+', '_' and '.'."
            )
        wanted = settings.changed(changes, f"the choice {name}")
        runs.append(PlannedRun(name, {changed: as_json(wanted)[changed] for changed in changes}, wanted))
    over = {"choices": {run.name: run.changed for run in runs}}
    return SweepPlan(settings, over, runs, _chosen(runs, only))


def _chosen(runs: list[PlannedRun], only: str | None) -> list[PlannedRun]:
    if only is None:
        return runs
    by_name = {run.name: run for run in runs}
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    for name in wanted or [only]:
        if name not in by_name:
            advice = did_you_mean(name, by_name, f"pass some of {', '.join(by_name)}.")
            raise RankriseError(f"--only names {name!r}, which is not a choice of the recipe: {advice}")
    return [by_name[name] for name in dict.fromkeys(wanted)]


def read_sets(words: Sequence[str]) -> dict[str, list[str]]:
    """The values of `--set`: with commas between them, with semicolons where a value is itself a list.

    >>> read_sets(["initialisation_scale=1,0.5", "spectra_epochs=1,2;5"])
    {'initialisation_scale': ['1', '0.5'], 'spectra_epochs': ['1,2', '5']}
    """
    types = get_type_hints(TrainSettings)
    sets: dict[str, list[str]] = {}
    for word in words:
        name, equals, values = word.partition("=")
        name = name.strip()
        if not equals:
            raise RankriseError(f"--set is {word!r}: pass SETTING=VALUE,VALUE.")
        if name in sets:
            raise RankriseError(f"--set gives {name} twice: pass all of its values in one.")
        between = ";" if get_origin(types.get(name)) is tuple else ","
        sets[name] = [value.strip() for value in values.split(between) if value.strip()]
    return sets


def read_seeds(text: str) -> int | list[int]:
    """How many seeds from 0 on, or the seeds with commas between them.

    >>> read_seeds("3"), read_seeds("0, 7"), read_seeds("7,")
    (3, [0, 7], [7])
    """
    try:
        return [int(seed) for seed in text.split(",") if seed.strip()] if "," in text else int(text)
    except ValueError as error:
        raise RankriseError(
            f"--seeds is {text!r}: pass how many, or the seeds with commas between them."
        ) from error


def _word(value: Any) -> str:
    """A value as a fraction of a folder's name."""
    if isinstance(value, list):
        return "+".join(map(_word, value))
    text = str(value).removesuffix(".0") if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "-", text)


def _distinct(values: Iterable[Any]) -> list[Any]:
    """Each value once, where it comes first; lists among them cannot be keys."""
    kept: list[Any] = []
    for value in values:
        if value not in kept:
            kept.append(value)
    return kept
