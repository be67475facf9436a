"""Where weights lie: the files in a folder, and the checkpoints below one that was passed in their place."""

import re
from collections.abc import Sequence
from pathlib import Path

from rankrise.foundations.counted import and_more
from rankrise.record.names import INITIAL, spectra_path
from rankrise.record.run_file import has_run

PICKLES = (".bin", ".pt", ".pth", ".ckpt")
SUFFIXES = (".safetensors", *PICKLES)
"""The suffixes of files with weights."""
WHOLE = ("model.safetensors", "pytorch_model.bin")
"""What transformers calls the weights of a model; of both, it takes the first."""
NAMED = 4
"""How many folders are named before the others are counted."""


def weights_in(folder: Path) -> list[Path]:
    """The files with weights in a folder, without those that a run of ours keeps there."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.suffix in SUFFIXES)
    return [
        path
        for path in files
        if not path.name.startswith(".") and not (path.name == INITIAL and has_run(folder))
    ]


def folders_with_weights(folder: Path) -> list[Path]:
    """The folders in a folder that have weights, in the order of the numbers in their names; without the
    spectra that a run of ours keeps."""
    spectra = spectra_path(folder, None).parent.name
    inside = [path for path in folder.iterdir() if not path.name.startswith(".") and path.name != spectra]
    return sorted((path for path in inside if path.is_dir() and weights_in(path)), key=_by_numbers)


def checkpoints_below(folder: Path) -> list[Path]:
    """The nearest folders with weights below a folder: those in it, or else those in its folders."""
    if not folder.is_dir():
        return []
    try:
        inside = sorted((path for path in folder.iterdir() if path.is_dir()), key=_by_numbers)
        return folders_with_weights(folder) or [path for one in inside for path in folders_with_weights(one)]
    except OSError:  # a folder that may not be read; this is but advice
        return []


def advice_below(folder: Path) -> str:
    """Where a folder of checkpoints was passed for one: which ones it has."""
    found = checkpoints_below(folder)
    return f"; pass one that is in it ({named(folder, found)}), such as {str(found[-1])!r}" if found else ""


def named(folder: Path, found: Sequence[Path]) -> str:
    """Paths as they are named within a folder, those beyond the first few by their number.

    >>> named(Path("all"), [Path(f"all/step-{step}") for step in range(6)])
    'step-0, step-1, step-2, step-3 and 2 more'
    """
    shown = ", ".join(path.relative_to(folder).as_posix() for path in found[:NAMED])
    return shown + and_more(len(found) - NAMED)


def _by_numbers(path: Path) -> list[tuple[int, int, str]]:
    """The key by which step-9 comes before step-10."""
    parts = re.findall(r"(\d+)|(\D+)", path.name)
    return [(0, int(number), "") if number else (1, 0, text) for number, text in parts]
