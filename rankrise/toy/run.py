"""A whole run: its pieces on several workers, each kept as soon as it is finished, resumable at any time."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import is_taken
from rankrise.foundations.provenance import machine, now, versions
from rankrise.recipes.toy_settings import ToySettings
from rankrise.record.names import remove_unfinished
from rankrise.record.run_file import has_run, write_run
from rankrise.runs import ToyRun, open_toy
from rankrise.runs.toy.pieces import Piece, pieces_of
from rankrise.toy.experiments import compute
from rankrise.toy.work import cost, needs

OnProgress = Callable[[float, int], None]
"""Called with the work that is done, in the unit of `work_of`, and the number of finished pieces."""


def run_toy(
    folder: str | Path,
    settings: ToySettings,
    workers: int = 1,
    command: str = "",
    note: str = "",
    progress: OnProgress | None = None,
) -> ToyRun:
    """Run every experiment that `settings` asks for into `folder`, skipping what is there already.

    >>> import tempfile
    >>> sizes = {"dimension": 2, "tokens": 3, "samples": 20}
    >>> settings = ToySettings(**sizes, alphas=("1e-4",), experiments=("stages", "flow"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run = run_toy(folder, settings)
    ...     len(run.missing), run.flow(seed=0, alpha="1e-4").ending
    (0, 'reached')
    """
    if not 1 <= workers <= 10_000:
        raise RankriseError(f"workers is {workers}: pass a whole number from 1 to 10,000.")
    run = _begin(Path(folder), settings, command, note)
    missing = run.missing
    if not missing:
        return run
    try:
        if workers == 1:
            _work_here(run, missing, progress)
        else:
            _work_beside(run, missing, workers, progress)
    finally:
        remove_unfinished(run.folder)
    write_run(run.folder, "toy", run.info | {"finished": now()})
    return open_toy(run.folder)


def _begin(folder: Path, settings: ToySettings, command: str, note: str) -> ToyRun:
    """The run in `folder`, new or to be resumed; refused where the folder holds something else."""
    if has_run(folder):
        run = open_toy(folder)
        asked, found = settings.to_dict(), run.settings.to_dict()
        for name, value in asked.items():
            if found[name] != value:
                raise RankriseError(
                    f"{folder} holds a run with {name} {found[name]}, not {value}: "
                    "pass the same settings to resume it, or another folder."
                )
        for piece in pieces_of(settings):
            if run.has(piece):
                run.check(piece)
        remove_unfinished(folder)
        return run
    if is_taken(folder):
        raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
    info = {
        "settings": settings.to_dict(),
        "versions": versions(),
        "machine": machine(),
        "command": command,
        "started": now(),
        "finished": None,
        "note": note,
    }
    write_run(folder, "toy", info)
    return ToyRun(folder, settings, info)


def _work_here(run: ToyRun, missing: list[Piece], progress: OnProgress | None) -> None:
    """One piece after another, in this process."""
    total = pieces_of(run.settings)
    done = sum(cost(piece, run.settings) for piece in total if piece not in missing)
    finished = len(total) - len(missing)
    for piece in missing:
        size = cost(piece, run.settings)

        def report(part: float, before: float = done, size: float = size, finished: int = finished) -> None:
            if progress is not None:
                progress(before + part * size, finished)

        compute(run.folder, run.settings, piece, report)
        done, finished = done + size, finished + 1
        report(1.0)


def _work_beside(run: ToyRun, missing: list[Piece], workers: int, progress: OnProgress | None) -> None:
    """The largest piece whose needs are met goes next, to whichever worker is free."""
    settings, total = run.settings, pieces_of(run.settings)
    parts = get_context("spawn").Array("d", [float(piece not in missing) for piece in total], lock=False)
    waiting = sorted(missing, key=lambda piece: cost(piece, settings), reverse=True)
    running: dict[Future[None], Piece] = {}
    with _executor(workers, parts) as executor:
        while waiting or running:
            unfinished = {*waiting, *running.values()}
            for piece in list(waiting):
                if len(running) < workers and not unfinished.intersection(needs(piece, settings)):
                    waiting.remove(piece)
                    with _interrupts_held():
                        future = executor.submit(_work, run.folder, settings, piece, total.index(piece))
                    running[future] = piece
            finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in finished:
                future.result()
                parts[total.index(running.pop(future))] = 1.0
            if progress is not None:
                done = sum(part * cost(piece, settings) for part, piece in zip(parts, total, strict=True))
                progress(done, len(total) - len(waiting) - len(running))


@contextmanager
def _executor(workers: int, parts: Any) -> Iterator[ProcessPoolExecutor]:
    """Worker processes that are ended at once when the work is broken off, whatever they are doing."""
    executor = ProcessPoolExecutor(workers, get_context("spawn"), _prepare_worker, (parts,))
    try:
        yield executor
    except BaseException:
        for process in (executor._processes or {}).values():
            process.terminate()
        raise
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Ctrl-C waits, so that a worker started meanwhile inherits that and leaves it to the parent for good."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_parts: Any = None


def _prepare_worker(parts: Any) -> None:
    global _parts
    _parts = parts
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where interrupts cannot be held


def _work(folder: Path, settings: ToySettings, piece: Piece, number: int) -> None:
    parent = os.getppid()

    def report(part: float) -> None:
        _parts[number] = part
        if os.getppid() != parent:  # it was killed; an exception would only be sent to it
            os._exit(1)

    compute(folder, settings, piece, report)
