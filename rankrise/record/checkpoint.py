"""state.json of a checkpoint: its run, its step, and the SHA-256 of its files."""

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
    run = read_run(folder, "tracked").get("id")
    write_json(path / ABOUT, {"format": FORMAT, "step": step, "run": run, "sha256": sums})


def verified_step(path: Path, names: Iterable[str] = (WEIGHTS, MOMENTS, STATE)) -> int:
    """The step of a checkpoint. Refuse one of another run or step, or whose named files have changed."""
    about = read_json(path / ABOUT, REMEDY)
    step, sums = about.get("step"), about.get("sha256")
    if about.get("format") != FORMAT or not isinstance(step, int) or not isinstance(sums, dict):
        raise unusable(path, f"has a damaged {ABOUT}")
    if path.name != checkpoint_path(path.parent, step).name:
        raise unusable(path, f"is of step {step} by its {ABOUT}")
    if about.get("run") != read_run(path.parent.parent, "tracked").get("id"):
        raise unusable(path, "is of another run")
    for name in names:
        try:
            same = sha256(path / name) == sums.get(name)
        except OSError as error:
            raise unusable(path, f"cannot be read ({error})") from error
        if not same:
            raise unusable(path, f"has another {name} than was written")
    return step


def unusable(path: Path, why: str) -> RankriseError:
    """The error for a checkpoint that cannot be used."""
    return RankriseError(f"the checkpoint {path} {why}: {REMEDY}.")
