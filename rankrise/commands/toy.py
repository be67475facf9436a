"""`rankrise toy`: the paper's toy experiments, into a folder."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.recipes.toy_settings import ToySettings


def toy(
    run: Path,
    settings: Annotated[Mapping[str, Any], ToySettings],
    quick: bool = False,
    recipe: str | None = None,
    workers: int | None = None,
    note: str = "",
    json: bool = False,
) -> None:
    """Train small attention networks from tiny weights, exactly and by descent, beside Algorithm 1.

    Without flags the settings are the paper's; a recipe or --quick replaces them, and a flag replaces one of
    those. An interrupted run resumes: the same command goes on where it stopped.

    Args:
        run: folder of the run, new or to be resumed.
        quick: a small size, about a minute on two cores.
        recipe: the name of a recipe ('rankrise recipes' lists them), or a YAML file of settings.
        workers: processes that work at the same time; as many as there are cores if not given.
        note: a remark kept with the run.
        json: print what was run as JSON.
    """
    import os

    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.foundations.provenance import command_line
    from rankrise.recipes.toy_settings import read_recipe
    from rankrise.record.folder import has_run
    from rankrise.runs import open_toy
    from rankrise.runs.toy.pieces import pieces_of
    from rankrise.show.progress import bar
    from rankrise.toy import QUICK, run_toy

    if quick and recipe is not None:
        raise RankriseError("both --quick and --recipe are given: pass one of them.")
    wanted = QUICK if quick else ToySettings() if recipe is None else read_recipe(recipe)
    begun = open_toy(run) if has_run(run) else None
    if begun is not None and not (quick or recipe or settings):  # to resume, the folder alone is enough
        wanted = begun.settings
        own, paper = wanted.to_dict(), ToySettings().to_dict()
        others = [f"{name} {own[name]}, not {paper[name]}" for name in paper if own[name] != paper[name]]
        if others:
            print(f"{run} has settings of its own ({'; '.join(others)}).", file=sys.stderr)
    wanted = wanted.changed(settings, "the command line")
    workers, command = workers or os.cpu_count() or 1, command_line()
    try:
        with bar("toy experiments", len(pieces_of(wanted)), unit="experiments") as move_to:
            done = run_toy(run, wanted, workers, command, note, progress=move_to)
    except KeyboardInterrupt:
        print(
            f"rankrise: interrupted; {run} keeps what is finished, the same command does the rest.",
            file=sys.stderr,
        )
        raise SystemExit(130) from None
    if begun is not None and begun.finished:
        print(f"{run} was finished, nothing is left to compute.", file=sys.stderr)
    if json:
        print(to_json({"folder": str(done.folder), **done.info}))
    else:
        print(f"The run is in {run}: next 'rankrise figures {run}' and 'rankrise claims {run}'.")
