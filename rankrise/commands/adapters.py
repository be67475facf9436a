"""What `extract`, `shrink` and `truncate` share."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.recipes.use_settings import Measuring

if TYPE_CHECKING:
    from rankrise.use import Moments
    from rankrise.use.data import Data


def measured_moments(model: Any, data: "Data | None", measuring: Measuring) -> "Moments | None":
    """Read or measure moments behind a progress bar; say on the error stream what a file holds."""
    from rankrise.show.progress import bar
    from rankrise.use.data import moments_of

    file = measuring.moments
    if data is None or (file is not None and file.exists()):
        found = moments_of(model, data, measuring)
        if found is not None:
            facts = ", ".join(f"{name} {value}" for name, value in found.about.items() if name != "model")
            print(f"Moments from {file}: {found.examples} examples, {facts}.", file=sys.stderr)
        return found
    with bar("moments", total=data.examples, unit="examples") as move_to:
        return moments_of(model, data, measuring, move_to)


def new_folder(out: Path | None) -> Path:
    """The folder for an adapter, refused before anything is computed."""
    if out is None:
        raise RankriseError("--out is missing: pass a new folder for the adapter.")
    if is_taken(out):
        raise RankriseError(f"{out} exists: pass a new folder for the adapter.")
    return out


def device_or_gpu(device: str | None) -> str | None:
    """The device that was asked for, or a GPU if there is one."""
    import torch

    from rankrise.foundations.device import usable

    if device is not None:
        return usable(device)
    return "cuda" if torch.cuda.is_available() else None
