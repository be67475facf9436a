"""`rankrise recipes`, `toy`, `train` and `sweep`: the experiments of the package, and your own."""

import atexit
import itertools
import os
import signal
import sys
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from rankrise.foundations.errors import RankriseError
from rankrise.recipes import toy_settings, train_settings
from rankrise.recipes.files import about, choices_in, find, names, settings_in
from rankrise.show.progress import Move, bar


def recipes(recipe: str | None = None) -> Iterator[Any]:
    """List the recipes: what each reproduces, how long it takes and the number it should reach.

    Pass a recipe's name to 'rankrise train' or 'rankrise sweep', or to 'rankrise toy --recipe'.

    Args:
        recipe: the name of one, to show its file, from which you can write your own.
        json: print them as JSON.
    """
    rows: list[dict[str, Any]] = []
    for name in [recipe] if recipe else names():
        contents = {"about": about(name), "settings": settings_in(name), "choices": choices_in(name)}
        rows.append({"name": name, "path": find(name), **contents})
    yield rows
    if recipe:
        print(f"# {find(recipe)}\n{find(recipe).read_text(encoding='utf-8')}", end="")
    else:
        for row in rows:
            print(row["name"])
            for label, text in row["about"].items():
                print(textwrap.fill(f"{label}: {text}", 78, initial_indent="  ", subsequent_indent="  "))


def toy(
    run: Path,
    *,
    settings: Annotated[Mapping[str, Any], toy_settings.ToySettings],
    quick: bool = False,
    recipe: str | None = None,
    workers: int | None = None,
) -> Iterator[Any]:
    """Train small attention networks from tiny weights, exactly and by descent, beside Algorithm 1.

    Without flags the settings are the paper's; a recipe or --quick replaces them, and a flag replaces one of
    those. An interrupted run resumes: the same command goes on where it stopped.

    Args:
        run: folder of the run, new or to be resumed.
        quick: a small size, about a minute on two cores.
        recipe: the name of a recipe ('rankrise recipes' lists them), or a YAML file of settings.
        workers: processes that work at the same time; as many as there are cores if not given.
        json: print what was run as JSON.
    """
    from rankrise.foundations.device import allowed_cores
    from rankrise.foundations.provenance import command_line
    from rankrise.record.folder import has_run
    from rankrise.runs import open_toy
    from rankrise.runs.toy import pieces_of
    from rankrise.toy import run_toy

    recipe = "toy-quick" if quick else recipe
    wanted = toy_settings.ToySettings() if recipe is None else toy_settings.read_recipe(recipe)
    if has_run(run) and not (recipe or settings):  # to resume, the folder alone is enough
        wanted = open_toy(run).settings
    wanted = wanted.changed(settings, "the command line")
    with bar("toy experiments", len(pieces_of(wanted)), unit="experiments") as move_to:
        done = run_toy(run, wanted, workers or allowed_cores(), command_line(), progress=move_to)
    yield {"folder": done.folder, **done.info}
    print(f"The run is in {run}: next 'rankrise figures {run}' and 'rankrise claims {run}'.")


def train(
    recipe: str,
    *,
    settings: Annotated[Mapping[str, Any], train_settings.TrainSettings],
    run: Path | None = None,
) -> Iterator[Any]:
    """Train a transformer by a recipe, and record the rank of every head's change.

    An interrupted run resumes: the same command goes on where it stopped. Several GPUs or machines:
    'accelerate launch -m rankrise train RECIPE'.

    Args:
        recipe: the name of a recipe ('rankrise recipes' lists them), or a YAML file of settings.
        run: folder of the run, new or to be resumed; runs/ and the recipe's name if not given.
        json: print where the run is and what it reached as JSON.
    """
    from torch import distributed

    from rankrise.train import Interrupted, Reached
    from rankrise.train import train as run_training

    wanted = train_settings.read_recipe(recipe).changed(settings, "the command line")
    folder, status = run or Path("runs") / Path(recipe).stem, 0
    unit = {"images": "images", "text": "tokens", "regression": "problems"}[wanted.subject]
    try:
        with ExitStack() as shown:
            moves: list[Move] = []

            def show(reached: Reached) -> None:
                size = reached.step_units
                if not moves:  # it begins when the bars of the data have ended
                    moves.append(shown.enter_context(bar(folder.name, reached.total_steps * size, unit)))
                text = f"{folder.name}, epoch {round(reached.epoch, 1):g}, {reached.result}"
                moves[0](reached.step * size, text, tell=reached.evaluated)

            result = run_training(wanted, folder, progress=show, meter=bar)
    except Interrupted as stopped:
        print(f"rankrise: {stopped}; the same command resumes it in {folder}.", file=sys.stderr)
        status = 128 + stopped.signal_number
    if distributed.is_initialized():
        if distributed.get_backend() == "gloo":  # its threads stay, beside which a normal end may abort
            atexit.register(os._exit, status)
        distributed.destroy_process_group()
    if status or os.environ.get("RANK", "0") != "0":  # the first process speaks for all
        raise SystemExit(status)
    yield {"folder": folder, **asdict(result)}
    print(f"The run is in {folder}: {result.result}. See 'rankrise watch {folder}'.")


def sweep(
    recipe: str,
    *,
    set: list[str] | None = None,
    seeds: str | None = None,
    only: str | None = None,
    run: Path | None = None,
    workers: int | None = None,
    dask: str | None = None,
    slurm: str | None = None,
) -> Iterator[Any]:
    """Train a recipe at every combination of some values, for several seeds: one run each, in one folder.

    A recipe with a table of choices is trained once per choice, each one change from the recipe, unless --set
    or --seeds is given.

    The same command again skips finished runs, resumes interrupted ones and tries failed ones once more. Runs
    go to processes of this machine, each with a GPU of its own where there are several, or to a cluster.
    Ends with code 1 when a run is not finished.

    Args:
        recipe: the name of a recipe ('rankrise recipes' lists them), or a YAML file of settings.
        set: a setting and its values, such as initialisation_scale=1,0.5,0.1; may be given several times.
        seeds: how many seeds from 0 on, or the seeds with commas between them; the recipe's if not given.
        only: train these of the recipe's choices only, with commas between them; all if not given.
        run: folder of the sweep, new or to be resumed; runs/ and the recipe's name with -sweep if not given.
        workers: how many runs to train at the same time; default: one per GPU, or per core without one.
        dask: address of a Dask scheduler.
        slurm: options of a job for submitit, such as partition=gpu,gpus_per_node=1,timeout_min=600.
        json: print the runs as JSON.
    """
    import torch
    from rich.console import Console

    from rankrise.show.tables import plain_table
    from rankrise.train import sweep as library
    from rankrise.train._task import task_of
    from rankrise.train._workers import Processes, dask_executor, slurm_executor

    folder = run or Path("runs") / f"{Path(recipe).stem}-sweep"
    trained, choices = train_settings.read_recipe(recipe), choices_in(recipe)
    if choices and set is None and seeds is None:
        planned = library.plan_choices(trained, choices, only)
    elif only is not None:
        raise RankriseError("--only picks from a recipe's choices, without --set and --seeds: leave it out.")
    else:
        numbers = [trained.seed] if seeds is None else library.read_seeds(seeds)
        planned = library.plan(trained, library.read_sets(set or []), numbers)
    left = [one for one in planned if library.standing(folder, one).state != "finished"]
    if slurm is not None:
        executor: Any = slurm_executor(slurm, folder.parent / f"{folder.resolve().name}-slurm")
    elif dask is not None:
        executor = dask_executor(dask)
    else:
        executor = Processes(workers, most=len(left))
        if left:  # say what is missing once, before any run
            task_of(left[0].settings, torch.device("cpu"))

    def interrupt(number: int, _: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends several: none may stop the saving
        raise KeyboardInterrupt(number)

    signal.signal(signal.SIGTERM, interrupt)
    try:
        with bar(f"{len(planned)} runs", total=len(planned)) as move_to, executor as workers_of:
            done = itertools.count(len(planned) - len(left) + 1)

            def ended(one: library.SweepRun) -> None:
                move_to(next(done), f"{one.name} {one.state}", tell=True)

            runs = library.run_sweep(planned, folder, workers_of, ended=ended)
    except KeyboardInterrupt as stopped:
        print(f"rankrise: interrupted; the same command resumes the sweep in {folder}.", file=sys.stderr)
        raise SystemExit(128 + (stopped.args or [signal.SIGINT])[0]) from None
    titles, rows = ("run", "state", "reason"), [(one.name, one.state, one.reason) for one in runs]
    try:
        yield {"folder": folder, "runs": [dict(zip(titles, row, strict=True)) for row in rows]}
        Console().print(plain_table(titles, rows, left=titles))
        print(f"The runs are in {folder}: next 'rankrise figures {folder}', 'rankrise claims {folder}'.")
    finally:
        if unfinished := sum(one.state != "finished" for one in runs):
            message = f"{unfinished} of {len(runs)} runs are not finished; the same command goes on."
            print(f"rankrise: {message}", file=sys.stderr)
            raise SystemExit(1)
