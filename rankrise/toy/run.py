"""A whole run: its pieces on several processes, each kept once it is finished, resumable at any time."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.foundations.provenance import machine, now, versions
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.names import remove_unfinished
from rankrise.record.run_file import has_run, write_run
from rankrise.runs.toy.pieces import Piece, needs, pieces_of
from rankrise.runs.toy.run import ToyRun, open_toy
from rankrise.toy.experiments import compute

OnProgress = Callable[[int], None]
"""Called with the number of finished pieces."""


def run_toy(
    folder: str | Path,
    settings: ToySettings,
    workers: int = 1,
    command: str = "",
    note: str = "",
    progress: OnProgress | None = None,
) -> ToyRun:
    """Run every experiment that `settings` asks for into `folder`, skipping finished ones.

    >>> import tempfile
    >>> sizes = {"dimension": 2, "tokens": 3, "samples": 20}
    >>> settings = ToySettings(**sizes, alphas=("1e-4",), experiments=("stages", "flow"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = run_toy(folder, settings)
    ...     len(run.missing), run.flow(seed=0, alpha="1e-4").ending
    (0, 'reached')
    """
    if workers < 1:
        raise RankriseError(f"workers is {workers}: pass a whole number of 1 or more.")
    run = _begin(Path(folder), settings, command, note)
    missing = run.missing
    if not missing:
        return run
    done = len(pieces_of(settings)) - len(missing)
    try:
        finished = _one_by_one(run, missing) if workers == 1 else _side_by_side(run, missing, workers)
        for _ in finished:
            done += 1
            if progress is not None:
                progress(done)
    finally:
        remove_unfinished(run.folder)
    write_run(run.folder, "toy", run.info | {"finished": now()})
    return open_toy(run.folder)


def _begin(folder: Path, settings: ToySettings, command: str, note: str) -> ToyRun:
    """The run in `folder`, new or to be resumed."""
    if has_run(folder):
        run = open_toy(folder)
        found = run.settings.to_dict()
        for name, value in settings.to_dict().items():
            if found[name] != value:
                raise RankriseError(
                    f"{folder} holds a run with {name} {found[name]}, not {value}: pass the same settings to "
                    "resume it, or another folder."
                )
        remove_unfinished(folder)
        return run
    if is_taken(folder):
        raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
    info: dict[str, Any] = {"settings": settings.to_dict(), "versions": versions(), "machine": machine()}
    info |= {"command": command, "started": now(), "finished": None, "note": note}
    write_run(folder, "toy", info)
    return ToyRun(folder, settings, info)


def _one_by_one(run: ToyRun, missing: list[Piece]) -> Iterator[Piece]:
    """Compute the pieces in this process."""
    waiting = list(missing)
    while waiting:
        piece = next(one for one in waiting if _ready(run, one))
        waiting.remove(piece)
        compute(run.folder, run.settings, piece)
        yield piece


def _side_by_side(run: ToyRun, missing: list[Piece], workers: int) -> Iterator[Piece]:
    """Compute the pieces in worker processes, each piece once those that it needs are finished."""
    waiting = list(missing)
    running: dict[Future[None], Piece] = {}
    with _pool(workers) as pool:
        while waiting or running:
            with _ignoring_interrupts():
                for piece in [one for one in waiting if _ready(run, one)]:
                    waiting.remove(piece)
                    running[pool.submit(compute, run.folder, run.settings, piece)] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    future.result()
                except BrokenProcessPool:
                    left = len(run.missing)
                    raise RankriseError(
                        f"a worker process was killed, perhaps for lack of memory: {run.folder} keeps what "
                        f"is finished, and the same command does the other {left} experiments."
                    ) from None
                yield running.pop(future)


def _ready(run: ToyRun, piece: Piece) -> bool:
    return all(run.has(need) for need in needs(piece, run.settings))


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that end at once when the work is broken off."""
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), _end_with_parent)
    try:
        yield pool
    except BaseException:
        for process in (pool._processes or {}).values():
            process.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Workers that start meanwhile inherit this, and leave Ctrl-C to the parent."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_with_parent() -> None:
    """Let a worker end when its parent is killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
