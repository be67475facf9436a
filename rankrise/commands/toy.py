"""`rankrise toy`: the paper's toy experiments, into a folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.recipes.toy_settings import ToySettings


def toy(
    run: Path,
    *,
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
    from rankrise.foundations.device import allowed_cores
    from rankrise.foundations.files import to_json
    from rankrise.foundations.provenance import command_line
    from rankrise.recipes.toy_settings import read_recipe
    from rankrise.record.folder import has_run
    from rankrise.runs import open_toy
    from rankrise.runs.toy.pieces import pieces_of
    from rankrise.show.progress import bar
    from rankrise.toy import QUICK, run_toy

    wanted = QUICK if quick else ToySettings() if recipe is None else read_recipe(recipe)
    if has_run(run) and not (quick or recipe or settings):  # to resume, the folder alone is enough
        wanted = open_toy(run).settings
    wanted = wanted.changed(settings, "the command line")
    with bar("toy experiments", len(pieces_of(wanted)), unit="experiments") as move_to:
        done = run_toy(run, wanted, workers or allowed_cores(), command_line(), note, progress=move_to)
    if json:
        print(to_json({"folder": str(done.folder), **done.info}))
    else:
        print(f"The run is in {run}: next 'rankrise figures {run}' and 'rankrise claims {run}'.")
