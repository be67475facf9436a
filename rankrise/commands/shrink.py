"""`rankrise shrink`: a PEFT adapter at lower ranks."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from rankrise.commands.tuned import Budget, Measuring


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

    If no budget is given, it keeps at least 99 % of its change (--keep 0.99).

    Args:
        adapter: the adapter's folder.
        out: new folder for the smaller adapter.
        uniform: give every matrix the same rank, as is done anyway without moments.
        base: the base model, to measure the loss: its folder or its name on the Hugging Face Hub.
        padded: pad every matrix with zeros to the largest rank, as vLLM needs it.
        dtype: number type of the smaller adapter's weights; the adapter's own if not given.
        device: where to compute, such as cpu or cuda; if not given, a GPU if there is one.
        json: print everything as JSON instead of a table.
    """
    import torch

    from rankrise import RankriseError, use
    from rankrise.commands.tuned import (
        base_with_data,
        device_or_gpu,
        moments_of,
        new_folder,
        read_moments,
        warn_of_no_gain,
    )
    from rankrise.show.adapter import print_adapter
    from rankrise.show.progress import bar
    from rankrise.use._shrink import merged

    place = new_folder(out, "the smaller adapter")
    asked = Measuring(**measuring)
    if (base is None) != (asked.data is None):
        raise RankriseError("A loss is measured on a base model with data: pass both --base and --data.")
    kept = Budget(**budget) if budget else Budget(keep=0.99)
    if kept.gain is not None and asked.data is None:
        raise RankriseError("--gain is a share of a measured loss: pass --base and --data to measure it on.")
    model, evaluate, on = None, None, ""
    weights = read_moments(asked.moments) if asked.moments is not None and base is None else None
    if base is not None:
        both = base_with_data(base, asked)
        assert both.data is not None
        model, evaluate, on = both.base, both.data.evaluate, both.data.measured_on
        weights = moments_of(both, merged(adapter, model), asked)
    with bar("shrinking", total=1.0) as move_to:
        smaller = use.shrink(
            adapter,
            **asdict(kept),
            uniform=True if uniform else None,
            base=model,
            moments=weights,
            evaluate=evaluate,
            device=device_or_gpu(device),
            progress=move_to,
        )
    warn_of_no_gain(smaller.measured)
    smaller.save(place, padded=padded, dtype=None if dtype is None else getattr(torch, dtype))
    default = "" if budget else "the least that keeps 99 % of its change (--keep 0.99)"
    print_adapter(smaller, place, kept.rank, on, json, what="adapter", default=default)
