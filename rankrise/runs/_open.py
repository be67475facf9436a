"""Open folders as runs, toy or tracked; group tracked ones into studies, by data set, and into choices."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import in_words
from rankrise.recipes.train_settings import science_of
from rankrise.record.folder import RUN, checkpoints_below, has_run, read_run
from rankrise.runs.toy import ToyRun, open_toy
from rankrise.watch import TrackedRun, find_stages
from rankrise.watch.types import StagesFound

Run = ToyRun | TrackedRun

BASE = "base"
"""Name of the run that a table of choices compares the others with."""

FAMILIES = {
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "imagenet": "ImageNet",
    "wikitext103": "WikiText-103",
    "wikipedia": "Wikipedia",
}
"""The paper's data sets and Wikipedia, by a part of the data set's name."""
TITLES = FAMILIES | {"tinyimagenet100": "ImageNet subset", "tinyimagenet": "Tiny-ImageNet"}
MODELS = {"GPT2LMHeadModel": "GPT-2", "InContextRegressor": "GPT-2"}
"""Models named in titles, by their class."""

WORDS = {
    "augmentation none": "no augmentation",
    "augmentation rand-augment": "RandAugment",
    "label_noise 1": "random labels",
    "redraw_labels yes": "drawn in every epoch",
    "qkv_bias yes": "biases of q, k and v",
    "qkv_bias no": "no biases of q, k and v",
    "initialisation linear": "torch's start",
    "initialisation normal": "normal start",
    "initialisation truncated-normal": "truncated normal start",
    "optimiser sgd": "SGD",
    "optimiser lion": "Lion",
    "optimiser muon": "Muon",
    "optimiser random-walk": "random walk",
}
"""Words for settings, which are otherwise written with their value."""
SHORT = {"learning_rate": "rate", "initialisation_scale": "scale"}


def open(paths: str | Path | Sequence[str | Path]) -> list[Run]:
    """Open runs, each once; a folder of runs, such as that of a sweep, stands for the runs in it.

    >>> open("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: no/such/folder does not exist: pass a folder written by ...
    """
    found: list[Path] = []
    for folder in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        inner = [] if has_run(folder) else sorted(folder.glob(f"*/{RUN}"))
        found += [path.parent for path in inner] or [folder]
    return [_opened(folder) for folder in dict.fromkeys(found)]


def by_kind(opened: Sequence[Run]) -> list[list[Run]]:
    """The runs grouped by kind, the kind of the first run first."""
    if not opened:
        raise RankriseError("no run was passed: pass one or more folders of runs.")
    kinds = dict.fromkeys(map(type, opened))
    return [[run for run in opened if type(run) is kind] for kind in kinds]


@lru_cache(maxsize=32)
def found_stages(run: TrackedRun) -> StagesFound:
    """The stages of a run, searched for once."""
    return find_stages(run)


def _opened(folder: Path) -> Run:
    if not has_run(folder) and checkpoints_below(folder):
        raise RankriseError(
            f"{folder} is not a run: it holds checkpoints; make a run of them with 'rankrise history FOLDER "
            "--run RUN', and pass that."
        )
    info = read_run(folder)
    return open_toy(folder, info) if info["kind"] == "toy" else TrackedRun(folder, info)


@dataclass(frozen=True)
class Study:
    """Runs on one data set; a run whose recipe names none is a study by itself, with `data` None."""

    data: str | None
    members: tuple[TrackedRun, ...]

    @property
    def family(self) -> str | None:
        """The data set of the paper that this is, or is a subset of."""
        plain = "".join(filter(str.isalnum, (self.data or "").lower()))
        return next((family for family in FAMILIES if family in plain), None)

    @property
    def label(self) -> str:
        """The data set as people write it; otherwise the run's name."""
        name = (self.data or "").rpartition(":")[2]  # the configuration of a Hugging Face data set
        plain = "".join(filter(str.isalnum, name.lower())).removesuffix("rawv1")
        return TITLES.get(plain) or name or self.members[0].name

    @property
    def title(self) -> str:
        """The data set with its language model, or the run and its model if the data set is unknown."""
        model = self.members[0].info["model"]
        if self.data is None:
            return f"run {self.label} ({MODELS.get(model, model)})"
        return f"{MODELS[model]} on {self.label}" if model in MODELS else self.label

    @property
    def main_label(self) -> str:
        """The title, with the scale of `main` if the runs have several."""
        several = len({one.scale for one in self.members}) > 1
        return f"{self.title}, scale {self.main[0].scale:g}" if several else self.title

    @cached_property
    def alike(self) -> list[list[TrackedRun]]:
        """Runs grouped by all but scale and seed."""
        groups: dict[str, list[TrackedRun]] = {}
        for one in self.members:
            shapes = [(layer["heads"], layer["d_model"], layer["d_head"]) for layer in one.layers]
            science = _science(one) | {"seed": None, "initialisation_scale": None}
            groups.setdefault(str((shapes, one.products, science)), []).append(one)
        return list(groups.values())

    @cached_property
    def main(self) -> tuple[TrackedRun, ...]:
        """The longest runs, or the base of choices, at the scale nearest to 1: one per seed."""

        def rank(one: TrackedRun) -> tuple[float, ...]:
            return one.last_finite_step, one.name == BASE, -_from_unit(one.scale), -one.seed

        best = max(self.members, key=rank)
        alike = next(group for group in self.alike if best in group)
        scale = min((one.scale for one in alike), key=lambda scale: (_from_unit(scale), -scale))
        return _one_per_seed(one for one in alike if one.scale == scale)

    @cached_property
    def scales(self) -> dict[float, tuple[TrackedRun, ...]]:
        """Runs by scale, largest first, of the settings that have the most scales above 0."""
        alike = max(self.alike, key=lambda group: (len({one.scale for one in group}), len(group)))
        scales = sorted({one.scale for one in alike if one.scale > 0}, reverse=True)
        return {scale: _one_per_seed(one for one in alike if one.scale == scale) for scale in scales}


def _science(run: TrackedRun) -> dict[str, Any]:
    return science_of(run.recipe) if run.recipe else {}


def _from_unit(scale: float) -> float:
    """The distance of a scale from 1 as a ratio: 1/2 is as far as 2."""
    return abs(math.log(scale)) if scale > 0 else math.inf


def _one_per_seed(members: Iterable[TrackedRun]) -> tuple[TrackedRun, ...]:
    """The longest run of each seed."""
    longest = {one.seed: one for one in sorted(members, key=lambda one: one.last_finite_step)}
    return tuple(longest[seed] for seed in sorted(longest))


def studies(runs: Sequence[Run], of_heads: bool = True) -> list[Study]:
    """The studies that tracked runs make up, in their order. With `of_heads` every run must have heads."""
    by_data: dict[str, list[TrackedRun]] = {}
    for run in runs:
        if isinstance(run, ToyRun):
            continue
        if of_heads and not run.layers:
            raise RankriseError(f"{run.folder} tracked no attention layer: pass another run.")
        by_data.setdefault(run.data or f"run {run.folder}", []).append(run)
    return [Study(same[0].data, tuple(same)) for same in by_data.values()]


@dataclass(frozen=True)
class Choice:
    """Runs, one per seed, and the `changes` from a base's settings; the base has none."""

    changes: Mapping[str, Any]
    runs: tuple[TrackedRun, ...]

    @property
    def label(self) -> str:
        """The change in words, with the progress of runs that are not finished.

        >>> Choice({"optimiser": "muon", "learning_rate": 3e-4, "momentum": 0.95}, ()).label
        'Muon, rate 0.0003'
        >>> Choice({"label_noise": 0.2}, ()).label, Choice({}, ()).label
        ('label noise 0.2', 'base')
        """
        words = []
        for name, value in self.changes.items():
            written = f"{value:g}" if isinstance(value, float) else in_words(value)
            if name != "momentum" or "optimiser" not in self.changes:
                plain = f"{SHORT.get(name, name.replace('_', ' '))} {written}"
                words.append(WORDS.get(f"{name} {written}", plain))
        ends = [f"up to {run.clock} {int(run.at(run.last_step))}" for run in self.runs if not run.finished]
        return ", ".join([*(words or [BASE]), *ends[:1]])


def choices_of(study: Study) -> list[Choice]:
    """The run named "base" and the choices among runs as long as it; none without a base."""
    base = next((run for run in study.members if run.name == BASE and run.recipe), None)
    if base is None:
        return []
    before, found = _science(base), dict[str, tuple[dict[str, Any], list[TrackedRun]]]()
    for run in study.members:
        now = _science(run)
        changed = {name for name in now if name != "seed" and now[name] != before.get(name)}
        changed |= {"learning_rate"} if "optimiser" in changed else set()  # each optimiser has its own
        changes = {name: now[name] for name in now if name in changed}
        if now and "epochs" not in changes and (run.layers, run.products) == (base.layers, base.products):
            found.setdefault(str(changes), (changes, []))[1].append(run)

    places = {name: place for place, name in enumerate(before)}

    def place(choice: Choice) -> list[tuple[int, float, str]]:
        """By the order of settings, then by their values."""
        return [
            (places.get(name, len(places)), value if isinstance(value, float) else 0.0, str(value))
            for name, value in choice.changes.items()
        ]

    return sorted((Choice(changes, _one_per_seed(runs)) for changes, runs in found.values()), key=place)
