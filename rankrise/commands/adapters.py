"""What `extract`, `shrink` and `truncate` share."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.recipes.use_settings import For, Measuring

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
        facts = ", ".join(f"{name} {value}" for name, value in found.to_dict().items() if name != "model")
        print(f"Moments from {file}: {facts}.", file=sys.stderr)
    return found


def new_folder(out: Path) -> Path:
    """Refuse a folder that holds something before anything is computed."""
    if is_taken(out):
        raise RankriseError(f"--out is {out}, which exists: pass a new folder for the adapter.")
    return out


def write(
    cut: "Callable[..., Adapter]",
    what: str,
    out: Path,
    data: "Data | None",
    budget: Mapping[str, Any],
    uniform: bool,
    for_: For,
    json: bool,
) -> None:
    """Cut `what` (a change or an adapter) to a budget, save the adapter and print what it holds."""
    from rankrise.show.progress import bar
    from rankrise.show.tables import print_adapter

    with bar("cutting", total=1.0) as move_to:
        adapter = cut(
            **budget,
            uniform=uniform or None,
            evaluate=data and data.evaluate,
            final=data and data.final,
            progress=move_to,
        )
    if data and adapter.measured:
        adapter = replace(adapter, measured=replace(adapter.measured, on=data.measured_on))
    adapter.save(out, for_)
    print_adapter(adapter, out, json, what)
