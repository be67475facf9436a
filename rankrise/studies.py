"""Tracked runs that belong together: those of one data set, by initialisation scale and seed.

What tells them apart is `run.json`'s `extra`, where `rankrise train` keeps its recipe. A run without one,
such as a user's own, is a study of its own.
"""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.recipes.train_settings import science_of
from rankrise.watch._stages import FORMAT as STAGES_FORMAT

PRODUCTS = ("KQ", "VO")
VARIED = ("seed", "initialisation_scale")

FAMILIES = {
    "cifar100": "CIFAR-100",
    "cifar10": "CIFAR-10",
    "imagenet": "ImageNet",
    "wikitext103": "WikiText-103",
    "wikipedia": "Wikipedia",
}
"""The paper's data sets, by what the name of a data set begins with or contains; and a stand-in for one."""


@dataclass(frozen=True)
class Member:
    """A run with what its recipe says of it."""

    run: watch.TrackedRun

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """All settings of the training; empty where the run's maker left none."""
        recipe = self.run.info.get("extra", {}).get("recipe")
        return recipe if isinstance(recipe, dict) else {}

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.run.folder.resolve().name

    @property
    def scale(self) -> float:
        """The initialisation scale, 1 if not said."""
        return float(self.recipe.get("initialisation_scale", 1.0))

    @property
    def seed(self) -> int:
        """The seed, 0 if not said."""
        return int(self.recipe.get("seed", 0))

    @property
    def data(self) -> str | None:
        """The name of the data set, where known."""
        name = self.run.info.get("extra", {}).get("data") or self.recipe.get("data")
        return str(name) if name else None

    @cached_property
    def steps(self) -> np.ndarray:
        """The measured steps, without step 0, at which nothing has changed, and without those at which a head
        had weights that are not finite."""
        return self.run.measured[self.finite]

    @cached_property
    def finite(self) -> np.ndarray:
        """Which of all measured steps `steps` has. bool [measured steps]"""
        counts = [len(layer["tracked_heads"]) for layer in self.run.layers]
        real = np.arange(max(counts, default=0)) < np.array(counts)[:, None]
        whole = self.run.measured > 0
        for product in self.products:
            whole &= np.isfinite(self.run.stable_rank(product)[:, real]).all(axis=1)
        return whole

    @property
    def last(self) -> int:
        """The last of them, 0 before the first."""
        return int(self.steps[-1]) if len(self.steps) else 0

    @cached_property
    def ranks(self) -> dict[str, np.ndarray]:
        """By product: the stable rank of the change, [steps, layers, heads]; nan where a layer has fewer."""
        return {product: self.run.stable_rank(product)[self.finite] for product in self.products}

    @property
    def spectra_steps(self) -> np.ndarray:
        """The steps with full spectra, likewise."""
        left_out = np.append(self.run.measured[~self.finite], 0)
        return self.run.spectra_steps[~np.isin(self.run.spectra_steps, left_out)]

    @cached_property
    def record(self) -> dict[str, np.ndarray]:
        """Loss and metrics by step."""
        return self.run.steps()

    @property
    def last_step(self) -> int:
        """The last step of the record, with a loss or a measurement; 0 where there is none."""
        return max((int(steps.max()) for steps in (self.steps, self.record["step"]) if len(steps)), default=0)

    @cached_property
    def stages(self) -> list[dict[str, Any]]:
        """The run's stages: of its stages.json if they are of now and of this method, else found anew
        and kept there."""
        path = self.run.folder / "stages.json"
        try:
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["format"] == STAGES_FORMAT and kept["until"] == self.last_step:
                return list(kept["stages"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
        found = watch.find_stages(self.run).to_dict()
        with suppress(OSError):  # a folder that cannot be written to keeps none
            write_json(path, found)
        return list(found["stages"])

    @property
    def finished(self) -> bool:
        """Whether its tracker was closed."""
        return bool(self.run.info.get("finished"))

    @property
    def products(self) -> list[str]:
        """Those of "KQ" and "VO" that were tracked."""
        return [product for product in PRODUCTS if product in self.run.products]

    @cached_property
    def settings(self) -> tuple[object, ...]:
        """What runs must share to differ in scale and seed only: layers, heads and the rest of the recipe."""
        shapes = tuple((one["heads"], one["d_model"], one["d_head"]) for one in self.run.layers)
        science = science_of(self.recipe) if self.recipe else {}
        rest = sorted((name, str(value)) for name, value in science.items() if name not in VARIED)
        return shapes, tuple(rest)

    @property
    def epoch_steps(self) -> int | None:
        """Steps in an epoch, where known."""
        steps = self.run.info.get("extra", {}).get("epoch_steps")
        return int(steps) if steps else None

    @property
    def clock(self) -> str:
        """What training time is told in."""
        return "epoch" if self.epoch_steps else "step"

    def at(self, steps: Any) -> np.ndarray:
        """Steps on that clock."""
        return np.asarray(steps, dtype=float) / (self.epoch_steps or 1)


@dataclass(frozen=True)
class Study:
    """Runs on one data set (`data`; None where runs do not say)."""

    data: str | None
    members: tuple[Member, ...]

    @property
    def family(self) -> str | None:
        """Which of the paper's data sets this is, or is a part of."""
        plain = "".join(letter for letter in (self.data or "").lower() if letter.isalnum())
        return next((family for family in FAMILIES if family in plain), None)

    @property
    def label(self) -> str:
        """The data set as people write it; of a part of ImageNet its own name; else the run's name."""
        name = (self.data or "").rpartition(":")[2]  # of a Hugging Face data set, its configuration
        plain = "".join(letter for letter in name.lower() if letter.isalnum()).removesuffix("rawv1")
        return FAMILIES.get(plain) or name or self.members[0].name

    @property
    def main_label(self) -> str:
        """The data set, and where runs differ in their initialisation scale, that of `main`."""
        several = len({one.scale for one in self.members}) > 1
        return f"{self.label}, scale {self.main[0].scale:g}" if several else self.label

    @cached_property
    def main(self) -> tuple[Member, ...]:
        """The runs that speak for the study, one a seed: trained longest, then at a scale nearest to 1."""
        best = max(self.members, key=lambda one: (one.last, -_from_unit(one.scale), -one.seed))
        alike = [one for one in self.members if one.settings == best.settings]
        scale = min((one.scale for one in alike), key=lambda scale: (_from_unit(scale), -scale))
        return _one_a_seed([one for one in alike if one.scale == scale])

    @cached_property
    def scales(self) -> dict[float, tuple[Member, ...]]:
        """Runs by scale, largest first, of the settings that have the most scales (and then, runs)."""
        by_settings: dict[tuple[object, ...], list[Member]] = {}
        for one in self.members:
            by_settings.setdefault(one.settings, []).append(one)
        alike = max(by_settings.values(), key=lambda same: (len({one.scale for one in same}), len(same)))
        scales = sorted({one.scale for one in alike}, reverse=True)
        return {scale: _one_a_seed([one for one in alike if one.scale == scale]) for scale in scales}


def _from_unit(scale: float) -> float:
    """How far a scale is from the default, 1: alike for half of it and twice it."""
    return abs(math.log(scale)) if scale > 0 else math.inf


def _one_a_seed(members: Sequence[Member]) -> tuple[Member, ...]:
    """By seed; of several runs with the same one, that which went furthest."""
    longest = {one.seed: one for one in sorted(members, key=lambda one: one.last)}
    return tuple(longest[seed] for seed in sorted(longest))


def studies_of(folders: Sequence[str | Path]) -> list[Study]:
    """The studies in some runs' folders, in the order in which they are named."""
    members = [Member(watch.load(folder)) for folder in folders]
    for one in members:
        if not one.run.layers:
            raise RankriseError(f"{one.run.folder} tracked no attention layer: there is no rank to show")
    by_data: dict[str, list[Member]] = {}
    for one in members:
        by_data.setdefault(one.data or f"run {one.run.folder}", []).append(one)
    return [Study(same[0].data, tuple(same)) for same in by_data.values()]
