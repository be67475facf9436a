"""Tracked runs that belong together: those on one data set, by initialisation scale and seed.

What tells them apart is the recipe that `rankrise train` keeps in run.json. A run without one, such as a
user's own, is a study by itself.
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
"""The name of the run that a table of choices compares the others with."""
VARIED = ("seed", "initialisation_scale")

FAMILIES = {
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "imagenet": "ImageNet",
    "wikitext103": "WikiText-103",
    "wikipedia": "Wikipedia",
}
"""The paper's data sets, by what the name of a data set begins with or contains; and a stand-in for one."""

SUBSETS = {"tinyimagenet100": "ImageNet subset", "tinyimagenet": "Tiny-ImageNet"}
"""Subsets of ImageNet as people write them, by their whole name."""

MODELS = {"GPT2LMHeadModel": "GPT-2", "InContextRegressor": "GPT-2"}
"""Models that a title names beside their data, by their class."""


@dataclass(frozen=True)
class Study:
    """Runs on one data set (`data`; None where runs do not say)."""

    data: str | None
    members: tuple[TrackedRun, ...]

    @property
    def family(self) -> str | None:
        """Which of the paper's data sets this is, or is a subset of."""
        plain = "".join(letter for letter in (self.data or "").lower() if letter.isalnum())
        return next((family for family in FAMILIES if family in plain), None)

    @property
    def label(self) -> str:
        """The data set as people write it, a subset of ImageNet by its own name; else the run's name."""
        name = (self.data or "").rpartition(":")[2]  # of a Hugging Face data set, its configuration
        plain = "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("rawv1")
        return (FAMILIES | SUBSETS).get(plain) or name or self.members[0].name

    @property
    def title(self) -> str:
        """The data set as a title has it: with the model, unless that is the paper's for images. Where the
        data are not known, the run and its model."""
        model = self.members[0].info["model"]
        if self.data is None:
            return f"run {self.label} ({MODELS.get(model, model)})"
        return f"{MODELS[model]} on {self.label}" if model in MODELS else self.label

    @property
    def main_label(self) -> str:
        """The title, and where runs differ in their initialisation scale, that of `main`."""
        several = len({one.scale for one in self.members}) > 1
        return f"{self.title}, scale {self.main[0].scale:g}" if several else self.title

    @cached_property
    def main(self) -> tuple[TrackedRun, ...]:
        """The runs that speak for the study, one per seed: trained longest, then the base of choices, then
        at a scale nearest to 1.
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
        """Runs by scale, largest first, of the settings that have the most scales (and then, runs); a scale
        of 0 or below has no place among them."""
        by_settings: dict[tuple[object, ...], list[TrackedRun]] = {}
        for one in self.members:
            by_settings.setdefault(_shared(one), []).append(one)
        alike = max(by_settings.values(), key=lambda same: (len({one.scale for one in same}), len(same)))
        scales = sorted({one.scale for one in alike if one.scale > 0}, reverse=True)
        return {scale: one_per_seed([one for one in alike if one.scale == scale]) for scale in scales}

    def left_out(self, judged: Sequence[TrackedRun]) -> dict[str, str]:
        """How each member that is not among some of them differs from the first of these, by its name; by
        its folder where several have the same name."""
        names = [one.name for one in self.members]
        return {
            one.name if names.count(one.name) == 1 else str(one.folder): _difference(one, judged[0])
            for one in self.members
            if one not in judged
        }


def _difference(run: TrackedRun, other: TrackedRun) -> str:
    """What tells a run from another on the same data set: settings, heads, or how far it went."""
    mine, theirs = (science_of(one.recipe) if one.recipe else {} for one in (run, other))
    told = [
        f"{name} {mine.get(name)} instead of {theirs.get(name)}"
        for name in dict.fromkeys((*mine, *theirs))
        if name != "seed" and str(mine.get(name)) != str(theirs.get(name))
    ]
    if _shapes(run) != _shapes(other) and not told:
        told = ["other layers, heads or products"]
    return ", ".join(told) or f"seed {run.seed} once more, up to step {run.last_finite_step}"


def _shapes(run: TrackedRun) -> tuple[object, ...]:
    layers = tuple((layer["heads"], layer["d_model"], layer["d_head"]) for layer in run.layers)
    return *layers, run.products


def _shared(run: TrackedRun) -> tuple[object, ...]:
    """What runs must have in common to differ in scale and seed only: layers, heads, their products and the
    science."""
    science = science_of(run.recipe) if run.recipe else {}
    alike = sorted((name, str(value)) for name, value in science.items() if name not in VARIED)
    return _shapes(run), tuple(alike)


def _from_unit(scale: float) -> float:
    """How far a scale is from the default, 1, as a ratio: half of it is as far as twice it."""
    return abs(math.log(scale)) if scale > 0 else math.inf


def one_per_seed(members: Sequence[TrackedRun]) -> tuple[TrackedRun, ...]:
    """By seed; of several runs with the same one, that which went furthest."""
    longest = {one.seed: one for one in sorted(members, key=lambda one: one.last_finite_step)}
    return tuple(longest[seed] for seed in sorted(longest))


def studies(runs: Sequence[Run], of_heads: bool = True) -> list[Study]:
    """The studies that the tracked ones among some runs make up, in their order; a run without heads is
    refused where they are `of_heads`.

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
