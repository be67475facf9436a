"""state.json of a checkpoint: its run, its step, and the SHA-256 of its files."""

import shutil
from collections.abc import Iterable
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import ABOUT, MOMENTS, STATE, WEIGHTS, checkpoint_path
from rankrise.record.run_file import read_run
from rankrise.record.tensors import sha256

FORMAT = "rankrise-checkpoint/2"
REMEDY = "restore it, or remove its folder to start from an earlier one or from the beginning"


def write_about(path: Path, folder: Path, step: int) -> None:
    """Write state.json of a checkpoint of the run in `folder`, after its other files."""
    sums = {name: sha256(path / name) for name in (WEIGHTS, MOMENTS, STATE)}
    write_json(path / ABOUT, {"format": FORMAT, "step": step, "run": _run_id(folder), "sha256": sums})


def verified_step(path: Path, names: Iterable[str] = (WEIGHTS, MOMENTS, STATE)) -> int:
    """The step of a checkpoint. Refused if it belongs to another run or step, or if one of the named files
    has changed since it was written."""
    about = read_json(path / ABOUT, REMEDY)
    step, sums = about.get("step"), about.get("sha256")
    if about.get("format") != FORMAT or not isinstance(sums, dict):
        raise unusable(path, f"has a {ABOUT} that is damaged")
    if type(step) is not int or path.name != checkpoint_path(path.parent, step).name:
        raise unusable(path, f"says in {ABOUT} that it is of step {step!r:.30}")
    if about.get("run") != _run_id(path.parent.parent):
        raise unusable(path, "is of another run")
    for name in names:
        try:
            same = sha256(path / name) == sums.get(name)
        except OSError as error:
            raise unusable(path, f"cannot be read ({error})") from error
        if not same:
            raise unusable(path, f"has {name}, which has changed since it was written")
    return step


def remove_checkpoint(path: Path) -> None:
    """Remove a checkpoint. It is renamed first: a kill meanwhile must not leave half of it under its name."""
    aside = path if path.name.startswith(".") else path.with_name(f".{path.name}-removed")
    if aside != path:
        path.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def unusable(path: Path, why: str) -> RankriseError:
    """The error for a checkpoint that cannot be used."""
    return RankriseError(f"the checkpoint {path} {why}: {REMEDY}.")


def _run_id(folder: Path) -> str | None:
    return read_run(folder, "tracked").get("id")
