"""Files with weights in a folder, and folders with weights below it."""

import re
from collections.abc import Sequence
from pathlib import Path

from rankrise.record.names import INITIAL
from rankrise.record.run_file import has_run

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SUFFIXES = (".safetensors", *PICKLES)
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""Names that transformers gives to a model's weights; it prefers the first."""
SHOWN = 4


def weights_in(folder: Path) -> list[Path]:
    """The files with weights in a folder, without the initial weights of a run."""
    own = {INITIAL} if has_run(folder) else set()
    files = (path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in files if not path.name.startswith(".") and path.name not in own)


def folders_with_weights(folder: Path) -> list[Path]:
    """The folders in a folder that have weights, in the order of the numbers in their names."""
    inside = (path for path in folder.iterdir() if path.is_dir() and path.name != "spectra")
    found = (path for path in inside if not path.name.startswith(".") and weights_in(path))
    return sorted(found, key=lambda path: by_numbers(path.name))


def checkpoints_below(folder: Path) -> list[Path]:
    """The folders with weights one level below a folder, or else two levels below it."""
    if not folder.is_dir():
        return []
    found = folders_with_weights(folder)
    return found or [path for one in sorted(folder.glob("*/")) for path in folders_with_weights(one)]


def advice_below(folder: Path) -> str:
    """Name the checkpoints in a folder that was passed in place of one of them."""
    found = checkpoints_below(folder)
    return f"; pass one that is in it ({named(folder, found)}), such as {str(found[-1])!r}" if found else ""


def named(folder: Path, found: Sequence[Path]) -> str:
    """List paths relative to a folder, the first few by name.

    >>> named(Path("all"), [Path(f"all/step-{step}") for step in range(6)])
    'step-0, step-1, step-2, step-3 and 2 more'
    """
    shown = ", ".join(path.relative_to(folder).as_posix() for path in found[:SHOWN])
    return shown + (f" and {len(found) - SHOWN} more" if len(found) > SHOWN else "")


def by_numbers(name: str) -> list[tuple[int, int, str]]:
    """A sort key that puts step-9 before step-10."""
    parts = re.findall(r"(\d+)|(\D+)", name)
    return [(0, int(number), "") if number else (1, 0, text) for number, text in parts]
