"""Tracked runs on one data set, distinguished by the recipe that `rankrise train` keeps in run.json.

A run without a recipe is a study by itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import science_of
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
        names = [one.name for one in self.members]
        return {
            one.name if names.count(one.name) == 1 else str(one.folder): _difference(one, judged[0])
            for one in self.members
            if one not in judged
        }


def _difference(run: TrackedRun, other: TrackedRun) -> str:
    """How a run differs from another on the same data set: settings, heads, or length."""
    mine, theirs = (science_of(one.recipe) if one.recipe else {} for one in (run, other))
    differing = [
        f"{name} {mine.get(name)} instead of {theirs.get(name)}"
        for name in dict.fromkeys((*mine, *theirs))
        if name != "seed" and str(mine.get(name)) != str(theirs.get(name))
    ]
    if _shapes(run) != _shapes(other) and not differing:
        differing = ["other layers, heads or products"]
    return ", ".join(differing) or f"seed {run.seed} once more, up to step {run.last_finite_step}"


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
