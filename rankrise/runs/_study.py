"""Tracked runs on one data set, distinguished by the recipe that `rankrise train` keeps in run.json.

A run without a recipe is a study by itself. Choices are runs that differ from a base in one thing each.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import in_words
from rankrise.recipes.train_settings import TrainSettings, science_of
from rankrise.runs._open import Run
from rankrise.runs.toy.run import ToyRun
from rankrise.watch import TrackedRun

BASE = "base"
"""Name of the run that a table of choices compares the others with."""
VARIED = ("seed", "initialisation_scale")

FAMILIES = {
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "imagenet": "ImageNet",
    "wikitext103": "WikiText-103",
    "wikipedia": "Wikipedia",
}
"""The paper's data sets and Wikipedia, by a part of the data set's name."""

SUBSETS = {"tinyimagenet100": "ImageNet subset", "tinyimagenet": "Tiny-ImageNet"}
"""Titles of subsets of ImageNet, by their whole name."""

MODELS = {"GPT2LMHeadModel": "GPT-2", "InContextRegressor": "GPT-2"}
"""Models named in titles, by their class."""


ORDER = list(science_of(TrainSettings().to_dict()))
"""Settings in the order in which choices of them are listed."""
VALUES = {
    ("augmentation", "none"): "no augmentation",
    ("augmentation", "rand-augment"): "RandAugment",
    ("label_noise", "1"): "random labels",
    ("redraw_labels", "yes"): "drawn in every epoch",
    ("qkv_bias", "yes"): "biases of q, k and v",
    ("qkv_bias", "no"): "no biases of q, k and v",
    ("initialisation", "linear"): "torch's start",
    ("initialisation", "normal"): "normal start",
    ("initialisation", "truncated-normal"): "truncated normal start",
    ("optimiser", "adamw"): "Adam",
    ("optimiser", "sgd"): "SGD",
    ("optimiser", "lion"): "Lion",
    ("optimiser", "muon"): "Muon",
    ("optimiser", "random-walk"): "random walk",
}
"""Names for values of settings, which are written as in a recipe."""
NAMES = {"learning_rate": "rate", "initialisation_scale": "scale", "label_noise": "label noise"}
"""Names for settings, written before their value."""


@dataclass(frozen=True)
class Study:
    """Runs on one data set; `data` is None if the runs do not say."""

    data: str | None
    members: tuple[TrackedRun, ...]

    @property
    def family(self) -> str | None:
        """The data set of the paper that this is, or is a subset of."""
        plain = "".join(letter for letter in (self.data or "").lower() if letter.isalnum())
        return next((family for family in FAMILIES if family in plain), None)

    @property
    def label(self) -> str:
        """The data set as people write it; otherwise the run's name."""
        name = (self.data or "").rpartition(":")[2]  # the configuration of a Hugging Face data set
        plain = "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("rawv1")
        return (FAMILIES | SUBSETS).get(plain) or name or self.members[0].name

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
    def main(self) -> tuple[TrackedRun, ...]:
        """The runs that speak for the study, one per seed: those trained longest, or the base of choices, at
        the scale nearest to 1.
        """
        best = max(
            self.members,
            key=lambda one: (one.last_finite_step, one.name == BASE, -_from_unit(one.scale), -one.seed),
        )
        alike = [one for one in self.members if _shared(one) == _shared(best)]
        scale = min((one.scale for one in alike), key=lambda scale: (_from_unit(scale), -scale))
        return one_per_seed([one for one in alike if one.scale == scale])

    @cached_property
    def scales(self) -> dict[float, tuple[TrackedRun, ...]]:
        """Runs by scale, largest first, of the settings that have the most scales above 0."""
        by_settings: dict[tuple[object, ...], list[TrackedRun]] = {}
        for one in self.members:
            by_settings.setdefault(_shared(one), []).append(one)
        alike = max(by_settings.values(), key=lambda same: (len({one.scale for one in same}), len(same)))
        scales = sorted({one.scale for one in alike if one.scale > 0}, reverse=True)
        return {scale: one_per_seed([one for one in alike if one.scale == scale]) for scale in scales}

    def left_out(self, judged: Sequence[TrackedRun]) -> dict[str, str]:
        """How each member that was not judged differs from those that were, by name, or by folder if names
        repeat.
        """
        names, found = [one.name for one in self.members], {}
        theirs = science_of(judged[0].recipe) if judged[0].recipe else {}
        for one in self.members:
            if one in judged:
                continue
            mine = science_of(one.recipe) if one.recipe else {}
            differing = [
                f"{name} {mine.get(name)} instead of {theirs.get(name)}"
                for name in dict.fromkeys((*mine, *theirs))
                if name != "seed" and str(mine.get(name)) != str(theirs.get(name))
            ]
            if not differing and _shapes(one) != _shapes(judged[0]):
                differing = ["other layers, heads or products"]
            again = f"seed {one.seed} once more, up to step {one.last_finite_step}"
            name = one.name if names.count(one.name) == 1 else str(one.folder)
            found[name] = ", ".join(differing) or again
        return found


def _shapes(run: TrackedRun) -> tuple[object, ...]:
    layers = tuple((layer["heads"], layer["d_model"], layer["d_head"]) for layer in run.layers)
    return *layers, run.products


def _shared(run: TrackedRun) -> tuple[object, ...]:
    """What runs must share to differ only in scale and seed: layers, heads, products and settings."""
    science = science_of(run.recipe) if run.recipe else {}
    alike = sorted((name, str(value)) for name, value in science.items() if name not in VARIED)
    return _shapes(run), tuple(alike)


def _from_unit(scale: float) -> float:
    """The distance of a scale from 1 as a ratio: 1/2 is as far as 2."""
    return abs(math.log(scale)) if scale > 0 else math.inf


def one_per_seed(members: Sequence[TrackedRun]) -> tuple[TrackedRun, ...]:
    """The longest run of each seed."""
    longest = {one.seed: one for one in sorted(members, key=lambda one: one.last_finite_step)}
    return tuple(longest[seed] for seed in sorted(longest))


def studies(runs: Sequence[Run], of_heads: bool = True) -> list[Study]:
    """The studies that tracked runs make up, in their order. With `of_heads` every run must have heads.

    >>> studies([])
    []
    """
    by_data: dict[str, list[TrackedRun]] = {}
    for run in runs:
        if isinstance(run, ToyRun):
            continue
        if of_heads and not run.layers:
            raise RankriseError(
                f"{run.folder} tracked no attention layer, and there is no rank to show: pass another run."
            )
        by_data.setdefault(run.data or f"run {run.folder}", []).append(run)
    return [Study(same[0].data, tuple(same)) for same in by_data.values()]


@dataclass(frozen=True)
class Choice:
    """Runs, one per seed, and the settings in which they differ from the base; the base has none."""

    changes: Mapping[str, Any]
    runs: tuple[TrackedRun, ...]

    @property
    def label(self) -> str:
        """The change in words, with the progress of runs that are not finished."""
        ends = [f"{run.clock} {int(run.at(run.last_step))}" for run in self.runs if not run.finished]
        return ", ".join([in_short(self.changes), *(f"up to {end}" for end in ends[:1])])


def choices_of(study: Study) -> list[Choice]:
    """The base, which is the run named "base", and the choices among runs as long as it; else no choices.

    A choice of another optimiser has its rate beside it.
    """
    base = next((run for run in study.members if run.name == BASE and run.recipe), None)
    if base is None:
        return []
    before, by_changes = science_of(base.recipe), dict[str, tuple[dict[str, Any], list[TrackedRun]]]()
    for run in study.members:
        if run.recipe and (run.layers, run.products) == (base.layers, base.products):
            now = science_of(run.recipe)
            changed = {name for name in now if name != "seed" and now[name] != before.get(name)}
            changed |= {"learning_rate"} if "optimiser" in changed else set()
            changes = {name: now[name] for name in now if name in changed}
            if "epochs" not in changes:
                by_changes.setdefault(str(changes), (changes, []))[1].append(run)

    def place(choice: Choice) -> list[tuple[int, float, str]]:
        places = [ORDER.index(name) if name in ORDER else len(ORDER) for name in choice.changes]
        values = choice.changes.values()
        numbers = [value if isinstance(value, float) else 0.0 for value in values]
        return list(zip(places, numbers, map(str, values), strict=True))

    return sorted((Choice(changes, one_per_seed(runs)) for changes, runs in by_changes.values()), key=place)


def in_short(changes: Mapping[str, Any]) -> str:
    """Changed settings in a few words, without an optimiser's momentum.

    >>> in_short({"optimiser": "muon", "learning_rate": 3e-4, "momentum": 0.95}), in_short({})
    ('Muon, rate 0.0003', 'base')
    >>> in_short({"label_noise": 0.2}), in_short({"label_noise": 1.0, "redraw_labels": True})
    ('label noise 0.2', 'random labels, drawn in every epoch')
    >>> in_short({"variances": [1.0, 0.5]})
    'variances 1,0.5'
    """
    words = []
    for name, value in changes.items():
        written = f"{value:g}" if isinstance(value, float) else in_words(value)
        if name != "momentum" or "optimiser" not in changes:
            named = f"{NAMES.get(name, name.replace('_', ' '))} {written}"
            words.append(VALUES.get((name, written), named))
    return ", ".join(words) or BASE


def at_their_best(choices: Sequence[Choice], scores: Sequence[float]) -> list[bool]:
    """Whether each choice has the highest score among its learning rates.

    >>> one, two = (Choice({"optimiser": "sgd", "learning_rate": rate}, ()) for rate in (0.1, 0.2))
    >>> at_their_best([Choice({}, ()), one, two], [0.9, 0.5, 0.6])
    [True, False, True]
    """
    best: dict[str, float] = {}
    others = [
        ", ".join(f"{name} {value}" for name, value in choice.changes.items() if name != "learning_rate")
        for choice in choices
    ]
    for other, score in zip(others, scores, strict=True):
        best[other] = max(best.get(other, score), score)
    return [not other or score == best[other] for other, score in zip(others, scores, strict=True)]
