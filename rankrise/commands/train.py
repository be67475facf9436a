"""`rankrise train`: train a transformer as a recipe says, with the rank of every head's change recorded."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.recipes.train_settings import TrainSettings


def train(
    recipe: str,
    *,
    settings: Annotated[Mapping[str, Any], TrainSettings],
    run: Path | None = None,
    note: str = "",
    json: bool = False,
) -> None:
    """Train a transformer by a recipe, and record the rank of every head's change.

    An interrupted run resumes: the same command goes on where it stopped. Several GPUs or machines:
    'accelerate launch -m rankrise train RECIPE'.

    Args:
        recipe: the name of a recipe ('rankrise recipes' lists them), or a YAML file of settings.
        run: folder of the run, new or to be resumed; runs/ and the recipe's name if not given.
        note: a remark kept with the run.
        json: print where the run is and what it reached as JSON.
    """
    import math
    from dataclasses import asdict

    from torch import distributed

    from rankrise.foundations.files import to_json
    from rankrise.foundations.optional import require
    from rankrise.recipes.train_settings import read_recipe
    from rankrise.show.progress import bar
    from rankrise.train import Interrupted, Reached
    from rankrise.train import train as run_training

    accelerate = require("accelerate", extra="train", purpose="training")
    wanted = read_recipe(recipe).changed(settings, "the command line")
    folder, status = run or Path("runs") / Path(recipe).stem, 0
    units = {"images": "images", "text": "tokens", "regression": "problems"}
    try:
        with bar(folder.name, total=1, unit=units[wanted.subject]) as move_to:

            def show(reached: Reached) -> None:
                text = f"{folder.name}, epoch {round(reached.epoch, 1):g}"
                if math.isfinite(reached.loss):  # none is known yet right after the start or a resume
                    text += f", {reached.result}"
                size = reached.step_units
                move_to(reached.step * size, text, reached.total_steps * size, tell=reached.evaluated)

            result = run_training(wanted, folder, note=note, progress=show)
        if accelerate.PartialState().is_main_process and json:
            print(to_json({"folder": str(folder), **asdict(result)}))
        elif accelerate.PartialState().is_main_process:
            print(f"The run is in {folder}: {result.result}.")
            print(f"Next: 'rankrise watch {folder}' for its ranks, 'rankrise report {folder}' for a page.")
    except Interrupted as stopped:
        print(f"rankrise: {stopped}; the same command resumes it in {folder}.", file=sys.stderr)
        status = 128 + stopped.signal_number
    if distributed.is_initialized():
        threads_stay = distributed.get_backend() == "gloo"  # beside which a normal end may abort
        distributed.destroy_process_group()
        if threads_stay:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if status:
        raise SystemExit(status)
