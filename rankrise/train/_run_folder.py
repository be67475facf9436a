"""A run's folder: whether training can go on there, and where a finished run ended."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.names import BEGUN
from rankrise.record.run_file import has_run, read_run


@dataclass(frozen=True)
class Reached:
    """Where a run is while it trains, or where it ended."""

    step: int
    total_steps: int
    step_units: int
    """Images or tokens in a step."""
    epoch: float
    loss: float
    """Mean of the last recorded window."""
    metrics: dict[str, float]
    """The metrics of the latest validation."""
    evaluated: bool
    """Whether that was at this step."""

    @property
    def result(self) -> str:
        """The loss and the metrics in words."""
        numbers = {"loss": self.loss, **self.metrics}
        return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


def run_in(folder: Path, settings: TrainSettings) -> dict[str, Any] | None:
    """The `run.json` of a run with these settings, or None if it has not begun; refuse anything else."""
    if not has_run(folder):
        if folder.exists() and (not folder.is_dir() or _is_foreign(folder)):
            raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
        return None
    info = read_run(folder, "tracked")
    recipe = info.get("extra", {}).get("recipe")
    if not recipe:
        raise RankriseError(f"{folder} is not a run of 'rankrise train': pass another folder.")
    for name, value in settings.to_dict().items():
        if name not in names_of(TrainSettings, "machine") and recipe.get(name) != value:
            raise RankriseError(
                f"{folder} holds a run with {name} {recipe.get(name)}, not {value}: pass the same settings "
                "to resume it, or another folder."
            )
    return info


def end_of(folder: Path) -> Reached:
    """Where a finished run ended, from its record."""
    run = watch.load(folder)
    last = {name: float(values[-1]) for name, values in run.steps().items()}
    known = ("step", "time", "loss", "learning_rate", "epoch")
    return Reached(
        int(last["step"]),
        int(run.extra["total_steps"]),
        int(run.extra["step_units"]),
        last["epoch"],
        last["loss"],
        {name: value for name, value in last.items() if name not in known},
        evaluated=True,
    )


def _is_foreign(folder: Path) -> bool:
    """Whether a folder without a `run.json` holds anything that a beginning run did not leave there."""
    return any(not name.startswith(".") for name in set(os.listdir(folder)) - BEGUN)
