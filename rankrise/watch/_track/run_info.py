"""What run.json tells of a tracked run: what was tracked, by whom, and on which clock."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
from numpy.typing import NDArray

from rankrise.foundations.errors import RankriseError
from rankrise.record.lock import is_held
from rankrise.watch._track.adapter import of_products


@dataclass(frozen=True, eq=False)
class RunInfo:
    """The folder of a tracked run and its run.json, whose facts have names here.

    What `rankrise train` keeps in `extra` (recipe, data, steps in an epoch) has defaults for other runs.
    """

    folder: Path
    info: dict[str, Any]
    """What run.json holds."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.resolve().name

    @property
    def finished(self) -> bool:
        """Whether its tracker was closed."""
        return bool(self.info.get("finished"))

    @property
    def going_on(self) -> bool | None:
        """Whether a process is writing it now; None where that cannot be told, as of a copy."""
        return is_held(self.folder)

    @property
    def extra(self) -> dict[str, Any]:
        """What the run's maker put beside the record."""
        return self.info.get("extra") or {}

    @property
    def recipe(self) -> dict[str, Any]:
        """All settings of the training; empty where the run's maker left none."""
        recipe = self.extra.get("recipe")
        return recipe if isinstance(recipe, dict) else {}

    @property
    def scale(self) -> float:
        """The initialisation scale, 1 if not said."""
        return float(self._told("initialisation_scale", self.recipe, 1.0))

    @property
    def seed(self) -> int:
        """The seed, 0 if not said."""
        return int(self._told("seed", self.recipe, 0))

    @property
    def data(self) -> str | None:
        """The name of the data set, where known."""
        name = self.extra.get("data") or self.recipe.get("data")
        return str(name) if name else None

    @property
    def base(self) -> str | None:
        """The model that a fine-tuning or an adapter began from, where the run's maker left its name."""
        name = self.extra.get("base")
        return str(name) if name else None

    @property
    def since(self) -> str | None:
        """The checkpoint that changes of a history are measured against; None where they are measured since
        initialisation."""
        history = self.extra.get("history")
        told = history.get("since") if isinstance(history, dict) else None
        return str(told) if told else None

    @property
    def adapter_rank(self) -> int | None:
        """The rank of an adapter, where the run's maker left it."""
        return int(self._told("adapter_rank", self.extra, 0, least=0)) or None

    @property
    def ceilings(self) -> dict[str, int]:
        """The highest rank that an adapter's change can have, of a "matrix" and of a head's products; {}
        without an adapter."""
        most = int(self._told("change_rank", self.extra, 0, least=0)) or self.adapter_rank
        return {"matrix": most} | of_products(self.info, most) if most else {}

    @property
    def epoch_steps(self) -> int | None:
        """Steps in an epoch, where known."""
        return int(self._told("epoch_steps", self.extra, 0, least=0)) or None

    @property
    def total_steps(self) -> int | None:
        """The steps that training was to take, where known."""
        return int(self._told("total_steps", self.extra, 0, least=0)) or None

    @property
    def warm_up_steps(self) -> float:
        """The steps of the warm-up; 0 where there is none, or it is not known."""
        return (self.epoch_steps or 0) * float(self._told("warm_up_epochs", self.recipe, 0, least=0))

    @property
    def batch_size(self) -> int:
        """Examples per step; 0 where not known."""
        return int(self._told("batch_size", self.recipe, 0, least=0))

    @property
    def left_notes(self) -> list[str]:
        """What the run's maker said about it."""
        told = self.extra.get("notes") or []
        return [str(note) for note in (told if isinstance(told, list) else [told])]

    @property
    def clock(self) -> str:
        """What training time is told in; where an epoch is one step, in steps."""
        return "epoch" if (self.epoch_steps or 1) > 1 else "step"

    def at(self, steps: Any) -> NDArray[Any]:
        """Steps on that clock."""
        return numpy.asarray(steps, dtype=float) / (self.epoch_steps or 1)

    @property
    def layers(self) -> list[dict[str, Any]]:
        """Of each tracked layer: its name, heads, sizes and notes."""
        return list(self.info["layers"])

    @property
    def matrices(self) -> list[str]:
        """The names of the other matrices that are tracked."""
        return [matrix["name"] for matrix in self.info["matrices"]]

    @property
    def products(self) -> tuple[str, ...]:
        """Those of "KQ" and "VO" that are tracked."""
        return tuple(self.info["settings"]["products"])

    def _told(
        self, name: str, where: dict[str, Any], default: float, least: float = -sys.float_info.max
    ) -> float:
        """A number that the run's maker left."""
        value = where.get(name)
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and least <= value <= sys.float_info.max):
            raise RankriseError(f"{self.folder} has {name} {value!r:.30} in its extra: record a number.")
        return default if value is None else value
