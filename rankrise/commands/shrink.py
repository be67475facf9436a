"""`rankrise shrink`: a PEFT adapter at lower ranks."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from rankrise.recipes.use_settings import Budget, Measuring


def shrink(
    adapter: Path,
    budget: Annotated[Mapping[str, Any], Budget],
    measuring: Annotated[Mapping[str, Any], Measuring],
    out: Path | None = None,
    uniform: bool = False,
    base: str | None = None,
    padded: bool = False,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    device: str | None = None,
    json: bool = False,
) -> None:
    """Cut a PEFT LoRA adapter to lower ranks, from its factors alone.

    The default budget keeps at least 99 % of its change (--keep 0.99).

    Args:
        adapter: the adapter's folder.
        out: new folder for the smaller adapter.
        uniform: give every matrix the same rank, the default without moments.
        base: the base model, to measure the loss: its folder or its name on the Hugging Face Hub.
        padded: fill every matrix up to the largest rank, as vLLM needs it.
        dtype: number type of the smaller adapter's weights; the adapter's own if not given.
        device: where to compute, such as cpu or cuda; if not given, a GPU if there is one.
        json: print everything as JSON instead of a table.
    """
    import torch

    from rankrise import RankriseError, use
    from rankrise.commands.adapters import device_or_gpu, measured_moments, new_folder
    from rankrise.show.adapter import print_adapter
    from rankrise.show.progress import bar
    from rankrise.use._shrink import merged
    from rankrise.use._weights import load_model
    from rankrise.use.data import read_data

    place = new_folder(out)
    asked = Measuring(**measuring)
    if (base is None) != (asked.data is None):
        raise RankriseError("A loss is measured on a base model with data: pass both --base and --data.")
    if "gain" in budget and asked.data is None:
        raise RankriseError("--gain is a share of a measured loss: pass --base and --data to measure it on.")
    model = None if base is None else load_model(base)
    data = None if model is None or base is None else read_data(model, base, asked)
    moments = None
    if data is not None or asked.moments is not None:
        moments = measured_moments(None if model is None else merged(adapter, model), data, asked)
    with bar("shrinking", total=1.0) as move_to:
        smaller = use.shrink(
            adapter,
            **(budget or {"keep": 0.99}),
            uniform=True if uniform else None,
            base=model,
            moments=moments,
            evaluate=None if data is None else data.evaluate,
            device=device_or_gpu(device),
            progress=move_to,
        )
    if dtype is not None:
        smaller = replace(smaller, dtype=getattr(torch, dtype))
    smaller.save(place, padded=padded)
    on = data.measured_on if data else ""
    print_adapter(smaller, place, budget or {"keep": 0.99}, on, json, "adapter")
