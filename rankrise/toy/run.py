"""A whole run: its pieces on several processes, each kept once it is finished, resumable at any time."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.foundations.provenance import machine, now, versions
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.folder import has_run, write_run
from rankrise.runs.toy.pieces import Piece, needs, pieces_of
from rankrise.runs.toy.run import ToyRun, open_toy
from rankrise.toy.experiments import compute


def run_toy(
    folder: str | Path,
    settings: ToySettings,
    workers: int = 1,
    command: str = "",
    note: str = "",
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
    if workers < 1:
        raise RankriseError(f"workers is {workers}: pass a whole number of 1 or more.")
    run = _begin(Path(folder), settings, command, note)
    waiting = run.missing
    if not waiting:
        return run
    total = len(pieces_of(settings))
    running: dict[Future[None], Piece] = {}
    with _workers(workers) as executor:
        while waiting or running:
            for piece in [one for one in waiting if all(map(run.has, needs(one, settings)))]:
                if len(running) < workers:
                    waiting.remove(piece)
                    with _ignoring_interrupts():
                        running[executor.submit(compute, run.folder, settings, piece)] = piece
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    future.result()
                except BrokenProcessPool:
                    raise RankriseError(
                        f"a worker process was killed, perhaps for lack of memory: {run.folder} keeps what "
                        f"is finished, and the same command does the other {len(run.missing)} experiments."
                    ) from None
                del running[future]
                if progress is not None:
                    progress(total - len(waiting) - len(running))
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
        return run
    if is_taken(folder):
        raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
    info: dict[str, Any] = {"settings": settings.to_dict(), "versions": versions(), "machine": machine()}
    info |= {"command": command, "started": now(), "finished": None, "note": note}
    write_run(folder, "toy", info)
    return ToyRun(folder, settings, info)


class _Here(Executor):
    """Computes in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def _workers(count: int) -> Iterator[Executor]:
    """Worker processes that end at once when the work is broken off; for one, this process."""
    if count == 1:
        yield _Here()
        return
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), _end_with_parent)
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
