"""`rankrise sweep`: one recipe at several values and seeds, or its choices, many runs at once."""

import itertools
import signal
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any


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
    json: bool = False,
) -> None:
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
        workers: how many runs to train at the same time; one per GPU, or per core without one, if not
            given.
        dask: address of a Dask scheduler.
        slurm: options of a Slurm job for submitit, such as
            partition=gpu,gpus_per_node=1,timeout_min=600.
        json: print the runs as JSON.
    """
    import torch

    from rankrise.foundations.errors import RankriseError
    from rankrise.foundations.files import to_json
    from rankrise.foundations.optional import require
    from rankrise.recipes.files import choices_in
    from rankrise.recipes.train_settings import read_recipe
    from rankrise.show.console import plain_table, safe_console
    from rankrise.show.progress import bar
    from rankrise.train import sweep as library
    from rankrise.train._task import task_of
    from rankrise.train._workers import Processes, dask_executor, slurm_executor

    folder = run or Path("runs") / f"{Path(recipe).stem}-sweep"
    settings, choices = read_recipe(recipe), choices_in(recipe)
    if choices and set is None and seeds is None:
        planned = library.plan_choices(settings, choices, only)
    elif only is not None:
        raise RankriseError("--only picks from a recipe's choices, without --set and --seeds: leave it out.")
    else:
        numbers = [settings.seed] if seeds is None else library.read_seeds(seeds)
        planned = library.plan(settings, library.read_sets(set or []), numbers)
    if dask is not None and slurm is not None:
        raise RankriseError("both --dask and --slurm are given: pass one of them.")
    executor: Any = nullcontext() if workers is None else Processes(workers)
    if slurm is not None:
        executor = slurm_executor(slurm, folder.parent / f"{folder.resolve().name}-slurm")
    elif dask is not None:
        executor = dask_executor(dask)
    left = [one for one in planned if library.standing(folder, one).state != "finished"]
    if left and slurm is None and dask is None:  # say what is missing once, before any run
        require("accelerate", extra="train", purpose="training")
        task_of(left[0].settings, torch.device("cpu"))

    def interrupt(number: int, _: Any) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `timeout` sends several: none may stop the saving
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        with bar(f"{len(planned)} runs", total=len(planned)) as move_to, executor as workers_of:
            done = itertools.count(len(planned) - len(left) + 1)

            def ended(one: library.SweepRun) -> None:
                move_to(next(done), f"{one.name} {one.state}", tell=True)

            runs = library.run_sweep(planned, folder, workers_of, ended=ended)
    except KeyboardInterrupt as stopped:
        print(
            "rankrise: interrupted; checkpoints and finished runs are kept, the same command resumes the "
            f"sweep in {folder}.",
            file=sys.stderr,
        )
        raise SystemExit(128 + (stopped.args or [signal.SIGINT])[0]) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    unfinished = sum(one.state != "finished" for one in runs)
    if json:
        rows = [
            {"run": one.name, "settings": one.changed, "state": one.state, "reason": one.reason}
            for one in runs
        ]
        print(to_json({"folder": str(folder), "runs": rows}))
    else:
        cells = [(one.name, one.state, one.reason) for one in runs]
        safe_console().print(plain_table(titles := ("run", "state", "reason"), cells, left=titles))
        print(f"The runs are in {folder}: next 'rankrise figures {folder}', 'rankrise claims {folder}'.")
    if unfinished:
        print(
            f"rankrise: {unfinished} of {len(runs)} runs are not finished; the same command goes on.",
            file=sys.stderr,
        )
        raise SystemExit(1)
