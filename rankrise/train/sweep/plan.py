"""Which runs a sweep has, checked before anything starts: every combination of values, or a table."""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import as_json
from rankrise.recipes.train_settings import TrainSettings


@dataclass(frozen=True)
class PlannedRun:
    """A run of a sweep."""

    name: str
    """Of its folder: what varies, "initialisation_scale=0.5,seed=1", or the choice's name."""
    changed: dict[str, Any]
    """What the sweep sets."""
    settings: TrainSettings


@dataclass(frozen=True)
class SweepPlan:
    """All runs of a sweep, and those that are to be trained now."""

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
    for name, values in {**sets, "seeds": range(seeds) if isinstance(seeds, int) else seeds}.items():
        if not values:
            raise RankriseError(f"the sweep gives no value for {name}: pass one or more.")
    varied = [name for name in sets if len(sets[name]) > 1]
    over: dict[str, list[Any]] = {name: [] for name in (*sets, "seed")}
    runs: dict[str, PlannedRun] = {}
    for values in itertools.product(*sets.values(), range(seeds) if isinstance(seeds, int) else seeds):
        wanted = settings.changed(dict(zip(over, values, strict=True)), "the sweep")
        changed = {name: as_json(wanted)[name] for name in over}
        name = ",".join(f"{name}={_word(changed[name])}" for name in (*varied, "seed"))
        if name in runs:
            raise RankriseError(f"two runs of the sweep would be {name}: pass every value and seed once.")
        runs[name] = PlannedRun(name, changed, wanted)
        for setting, value in changed.items():
            if value not in over[setting]:
                over[setting].append(value)
    every, drawn = list(runs.values()), over.pop("seed")
    return SweepPlan(settings, {"sets": over, "seeds": drawn}, every, every)


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
