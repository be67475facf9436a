"""A whole run: its pieces on several processes, each kept once it is finished, resumable at any time."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.foundations.provenance import machine, now, versions
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.folder import has_run, write_run
from rankrise.runs import ToyRun, open_toy
from rankrise.runs.toy import Piece, pieces_of
from rankrise.toy.experiments import compute


def run_toy(
    folder: str | Path,
    settings: ToySettings,
    workers: int = 1,
    command: str = "",
    progress: Callable[[int], None] | None = None,
) -> ToyRun:
    """Run every experiment that `settings` asks for into `folder`, skipping finished ones.

    `progress` is called with the number of finished pieces.

    >>> import tempfile
    >>> sizes = {"dimension": 2, "tokens": 3, "samples": 20}
    >>> settings = ToySettings(**sizes, alphas=("1e-4",), experiments=("stages", "flow"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = run_toy(folder, settings)
    ...     len(run.missing), run.flow(seed=0, alpha="1e-4").ending
    (0, 'reached')
    """
    run = _begin(Path(folder), settings, command)
    waiting = run.missing
    done = len(pieces_of(settings)) - len(waiting)
    with closing(_computed(run, waiting, workers)) as finished:
        for number, _ in enumerate(finished, start=done + 1):
            if progress is not None:
                progress(number)
    if waiting:
        write_run(run.folder, "toy", run.info | {"finished": now()})
    return open_toy(run.folder)


def _computed(run: ToyRun, pieces: list[Piece], workers: int) -> Generator[None]:
    """Compute pieces, which come after those that they need, and yield as each is finished."""
    if workers == 1:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # a seed gives the same numbers on any number of workers
        try:
            for piece in pieces:
                compute(run.folder, run.settings, piece)
                yield
        finally:
            torch.set_num_threads(threads)
        return
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _begin_worker)
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # workers inherit it, and leave Ctrl-C to us
        running = [pool.submit(compute, run.folder, run.settings, piece) for piece in pieces]
        signal.signal(signal.SIGINT, before)
        yield from (future.result() for future in as_completed(running))
    except BrokenProcessPool:
        raise RankriseError(
            f"a worker process was killed, perhaps for lack of memory: {run.folder} keeps what is finished, "
            f"and the same command does the other {len(run.missing)} experiments."
        ) from None
    finally:
        for process in (pool._processes or {}).values():
            process.terminate()
        pool.shutdown(cancel_futures=True)


def _begin(folder: Path, settings: ToySettings, command: str) -> ToyRun:
    """The run in `folder`, new or to be resumed."""
    wanted = settings.to_dict()
    if has_run(folder):
        run = open_toy(folder)
        for name, found in run.settings.to_dict().items():
            if found != wanted[name]:
                raise RankriseError(
                    f"{folder} holds a run with {name} {found}, not {wanted[name]}: pass the same settings "
                    "to resume it, or another folder."
                )
        return run
    if is_taken(folder):
        raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
    info: dict[str, Any] = {"settings": wanted, "versions": versions(), "machine": machine()}
    info |= {"command": command, "started": now(), "finished": None}
    write_run(folder, "toy", info)
    return ToyRun(folder, settings, info)


def _begin_worker() -> None:
    """One thread, and an end when the parent is killed."""
    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
