"""`rankrise extract`: an adapter from two checkpoints that keeps the directions that matter."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from rankrise.recipes.use_settings import Budget, For, Measuring


def extract(
    models: list[str],
    *,
    budget: Annotated[Mapping[str, Any], Budget],
    measuring: Annotated[Mapping[str, Any], Measuring],
    out: Path,
    uniform: bool = False,
    leave_rest: bool = False,
    for_: For = "peft",
    json: bool = False,
) -> None:
    """Make a PEFT adapter of the change from a base to a tuned model, cut to the directions that matter.

    With --data, the directions are those that matter most for the loss, and the adapter's loss is measured on
    held-out examples. Without it, they are those of a plain SVD, at one rank for all matrices. The default
    budget is that of rank 8.

    Args:
        models: BASE and TUNED, each a checkpoint's folder or a name on the Hugging Face Hub; or the folder of
            one run of 'rankrise train'.
        out: new folder for the adapter.
        uniform: give every matrix the same rank, the default without moments.
        leave_rest: leave out what is not cut: biases, norms, tied embeddings, a new head.
        for_: the program that will load it; all: any that reads PEFT folders, with every matrix at one rank.
        json: print everything as JSON instead of a table.
    """
    from functools import partial

    from rankrise import use
    from rankrise.commands.adapters import measured_moments, new_folder, write
    from rankrise.use.data import open_models

    place, asked, budget = new_folder(out), Measuring(**measuring), budget or {"rank": 8}
    base, tuned, data = open_models(models, asked, searching="gain" in budget)
    moments = measured_moments(tuned, data, asked)
    rest: Literal["leave", "keep"] = "leave" if leave_rest else "keep"
    cut = partial(use.extract, base, tuned, moments=moments, rest=rest, metric=asked.metric)
    write(cut, "change", place, data, budget, uniform, for_, json)
