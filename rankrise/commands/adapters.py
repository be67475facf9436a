"""What `extract`, `shrink` and `truncate` share."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.recipes.use_settings import Measuring

if TYPE_CHECKING:
    from rankrise.use import Adapter, Moments
    from rankrise.use.data import Data


def measured_moments(model: Any, data: "Data | None", measuring: Measuring) -> "Moments | None":
    """Read or measure moments behind a progress bar; say on the error stream what a file holds."""
    from rankrise.show.progress import bar
    from rankrise.use.data import moments_of

    file = measuring.moments
    if data is not None and (file is None or not file.exists()):
        with bar("moments", total=data.examples, unit="examples") as move_to:
            return moments_of(model, data, measuring, move_to)
    found = moments_of(model, data, measuring)
    if found is not None:
        facts = ", ".join(f"{name} {value}" for name, value in found.about.items() if name != "model")
        print(f"Moments from {file}: {found.examples} examples, {facts}.", file=sys.stderr)
    return found


def new_folder(out: Path | None) -> Path:
    """The folder for an adapter, refused before anything is computed."""
    if out is None or is_taken(out):
        raise RankriseError(f"--out is {out or 'missing'}: pass a new folder for the adapter.")
    return out


def device_or_gpu(device: str | None) -> str | None:
    """The device that was asked for, or a GPU if there is one."""
    import torch

    from rankrise.foundations.device import usable

    if device is not None:
        return usable(device)
    return "cuda" if torch.cuda.is_available() else None


def write(
    adapter: "Adapter",
    place: Path,
    budget: Mapping[str, Any],
    data: "Data | None",
    what: str,
    padded: bool,
    dtype: str | None,
    json: bool,
) -> None:
    """Save an adapter and print what it holds of `what`, a change or an adapter."""
    from dataclasses import replace

    import torch

    from rankrise.show.adapter import print_adapter

    if dtype is not None:
        adapter = replace(adapter, dtype=getattr(torch, dtype))
    adapter.save(place, padded=padded)
    print_adapter(adapter, place, budget, data.measured_on if data else "", json, what)
