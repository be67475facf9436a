"""Whether a run can go on with what a folder holds: with its settings, and from its newest checkpoint."""

import os
from pathlib import Path
from typing import Any

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.names import BEGUN, CHECKPOINTS, RANKS, STEPS
from rankrise.record.run_file import has_run, read_run
from rankrise.train._times import Times


def run_in(folder: Path, settings: TrainSettings) -> dict[str, Any] | None:
    """The `run.json` of a run with these settings, or None if it has not begun; anything else is refused."""
    if not has_run(folder):
        if folder.exists() and (not folder.is_dir() or _foreign(folder)):
            raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
        return None
    info = read_run(folder, "tracked")
    recipe = watch.TrackedRun(folder, info).recipe
    if not recipe:
        raise RankriseError(f"{folder} does not hold a run of 'rankrise train': pass another folder.")
    for name, value in settings.to_dict().items():
        if name in names_of(TrainSettings, "machine"):
            continue
        if name not in recipe:
            raise RankriseError(
                f"{folder} holds a run of an earlier version, which had no setting {name!r}: pass another "
                "folder."
            )
        if recipe[name] != value:
            raise RankriseError(
                f"{folder} holds a run with {name} {recipe[name]}, not {value}: pass the same settings "
                "to resume it, or another folder."
            )
    return info


def refuse_gaps(folder: Path, times: Times, last: int) -> None:
    """Refuse to go on from step `last` where the record does not reach there whole, as it did when that was
    saved."""
    advice = f"restore it, or remove {folder / CHECKPOINTS} to train from the beginning"
    if last > times.total:
        raise RankriseError(f"{folder} has a checkpoint of step {last} of {times.total}: {advice}.")
    run, schedule, steps = watch.load(folder), times.schedule(), range(1, last + 1)
    for name, kept, due in (
        (STEPS, run.steps()["step"], times.logs),
        (RANKS, run.measured, schedule.due),
        ("spectra", run.spectra_steps, schedule.full),
    ):
        there = set(kept.tolist())
        missing = next((step for step in steps if due(step) and step not in there), None)
        if missing is not None:
            raise RankriseError(
                f"{folder / name} lacks step {missing}, and the newest checkpoint is of step {last}: "
                f"{advice}."
            )


def _foreign(folder: Path) -> bool:
    """Whether a folder without a `run.json` holds anything that no beginning run left there."""
    return any(not name.startswith(".") for name in set(os.listdir(folder)) - BEGUN)
