"""state.json of a checkpoint: its step, and the checksums that its files are verified by."""

import logging
from collections.abc import Iterable
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.record.names import ABOUT, MOMENTS, STATE, WEIGHTS, checkpoint_path
from rankrise.record.run_file import read_run
from rankrise.record.tensors import sha256

FORMAT = "rankrise-checkpoint/2"
EARLIER = "rankrise-checkpoint/1"
"""Of versions that wrote no checksums, at first."""
REMEDY = "restore it, or remove its folder to start from an earlier one or from the beginning"

log = logging.getLogger("rankrise")


def write_about(path: Path, folder: Path, step: int) -> None:
    """Write state.json of a checkpoint of the run in `folder`, once the other files are there."""
    sums = {name: sha256(path / name) for name in (WEIGHTS, MOMENTS, STATE)}
    write_json(path / ABOUT, {"format": FORMAT, "step": step, "run": run_id(folder), "sha256": sums})


def verified_step(path: Path, names: Iterable[str] = (WEIGHTS, MOMENTS, STATE)) -> int:
    """The step of a checkpoint, if it is that of its folder, of the run that it lies in, and the files
    named are as they were written.

    Without checksums only one of an earlier version passes, with a warning. Earlier versions did not say
    either of which run a checkpoint is.
    """
    kept = read_json(path / ABOUT, REMEDY)
    step, sums = kept.get("step"), kept.get("sha256")
    if kept.get("format") not in (FORMAT, EARLIER):
        raise unusable(path, f"has a {ABOUT} that is damaged")
    if type(step) is not int or path.name != checkpoint_path(path.parent, step).name:
        raise unusable(path, f"says in {ABOUT} that it is of step {step!r:.30}")
    if kept.get("run") not in (None, run_id(path.parent.parent)):
        raise unusable(path, "is of another run")
    if kept["format"] == EARLIER and "sha256" not in kept:
        log.warning("%s is of an earlier version, without checksums: damage to it cannot be noticed.", path)
        return step
    for name in names:
        if not isinstance(sums, dict) or name not in sums:
            raise unusable(path, f"has {name}, whose checksum is not in {ABOUT}")
        try:
            same = sha256(path / name) == sums[name]
        except OSError as error:
            raise unusable(path, f"cannot be read ({error})") from error
        if not same:
            raise unusable(path, f"has {name}, which has changed since it was written")
    return step


def run_id(folder: Path) -> str | None:
    """What tells a run from all others; None of one that was begun by an earlier version."""
    return read_run(folder, "tracked").get("id") or None


def unusable(path: Path, why: str) -> RankriseError:
    """What is said of a checkpoint that is damaged."""
    return RankriseError(f"the checkpoint {path} {why}: {REMEDY}.")
