"""`rankrise shrink`: a PEFT adapter at lower ranks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.use_settings import Budget, For, Measuring


def shrink(
    adapter: Path,
    *,
    budget: Annotated[Mapping[str, Any], Budget],
    measuring: Annotated[Mapping[str, Any], Measuring],
    out: Path,
    uniform: bool = False,
    base: str | None = None,
    for_: For = "peft",
    json: bool = False,
) -> None:
    """Cut a PEFT LoRA adapter to lower ranks, from its factors alone.

    The default budget keeps at least 99 % of its change (--keep 0.99).

    Args:
        adapter: the adapter's folder.
        out: new folder for the smaller adapter.
        uniform: give every matrix the same rank, the default without moments.
        base: the base model, to measure the loss: its folder or its name on the Hugging Face Hub.
        for_: the program that will load it; all: any that reads PEFT folders, with every matrix at one rank.
        json: print everything as JSON instead of a table.
    """
    from functools import partial

    from rankrise import use
    from rankrise.commands.adapters import measured_moments, new_folder, write
    from rankrise.use._shrink import merged
    from rankrise.use._weights import load_model
    from rankrise.use.data import read_data

    place, asked, budget = new_folder(out), Measuring(**measuring), budget or {"keep": 0.99}
    if (base is None) != (asked.data is None):
        raise RankriseError("A loss is measured on a base model with data: pass both --base and --data.")
    model = tuned = data = None
    if base is not None:
        model = load_model(base)
        data, tuned = read_data(model, base, asked, searching="gain" in budget), merged(adapter, model)
    moments = measured_moments(tuned, data, asked)
    cut = partial(use.shrink, adapter, base=model, moments=moments, metric=asked.metric)
    write(cut, "adapter", place, data, budget, uniform, for_, json)
