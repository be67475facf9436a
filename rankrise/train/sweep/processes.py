"""Workers on this machine: a fresh process for every call, each with its share of the processors or a GPU."""

import faulthandler
import os
import queue
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch

from rankrise.foundations.device import allowed_cores
from rankrise.foundations.errors import RankriseError

MOST = 10_000
"""Processes of one machine: more than any has cores or GPUs for."""

GRACE = 60.0
"""Seconds in which a worker that was told to stop may save its checkpoint."""


class ProcessEnded(Exception):
    """A worker's process ended without a result: it was killed, or the machine ran out of memory."""


class Processes(Executor):
    """An executor that starts one process per call, so that one that is killed takes nothing with it.

    `workers` of them are alive at a time (default: as many as GPUs, else processors, but `most` at the
    most). Where there are several GPUs, each process sees one. Left by an exception, such as Ctrl-C, it tells
    its processes to stop by SIGTERM, on which training saves a checkpoint.
    """

    def __init__(self, workers: int | None = None, most: int | None = None) -> None:
        if workers is not None and not 1 <= workers <= MOST:
            raise RankriseError(f"workers is {workers}: pass a whole number from 1 to {MOST:,}.")
        gpus, cores = visible_gpus(), allowed_cores()
        count = workers or max(1, min(len(gpus) or cores, most or cores))
        self._threads = ThreadPoolExecutor(count, initializer=_hold_interrupts)
        self._cores = None if "OMP_NUM_THREADS" in os.environ else max(1, cores // count)
        self._gpus: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for number in range(count):
            self._gpus.put(gpus[number % len(gpus)] if len(gpus) > 1 else None)
        self._context = get_context("spawn")
        self._lock = threading.Lock()  # two threads that reap a child at once lose its exit code
        self._alive: set[BaseProcess] = set()
        self._stopped = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn`, which its process imports by name, as soon as a worker is free."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; what runs goes on."""
        self._threads.shutdown(wait, cancel_futures=cancel_futures)

    def stop(self) -> None:
        """Tell every process to stop, wait until each has saved its state, and kill those that do not end."""
        with self._lock:
            self._stopped = True
            alive = set(self._alive)
        self._threads.shutdown(wait=False, cancel_futures=True)
        for process in alive:
            process.terminate()
        waiting = {process.sentinel for process in alive}
        while waiting and (ended := wait(list(waiting), timeout=GRACE)):
            waiting -= set(ended)
        for process in alive:
            if process.sentinel in waiting:
                process.kill()
        self._threads.shutdown(wait=True)

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        if kind is not None:
            self.stop()
        self.shutdown()

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        gpu = self._gpus.get()
        try:
            receiving, sending = self._context.Pipe(duplex=False)
            with receiving:
                with sending:
                    call = (sending, gpu, self._cores, function, args, kwargs)
                    process = self._started(self._context.Process(target=_serve, args=call))
                try:
                    return receiving.recv()
                except EOFError:
                    pass
                finally:
                    self._end(process)
                raise ProcessEnded(f"its process {_ending(process.exitcode)}")
        finally:
            self._gpus.put(gpu)

    def _started(self, process: BaseProcess) -> BaseProcess:
        with self._lock:
            if self._stopped:
                raise ProcessEnded("the workers were stopped before it began")
            process.start()
            self._alive.add(process)
        return process

    def _end(self, process: BaseProcess) -> None:
        wait([process.sentinel])
        with self._lock:
            process.join()
            self._alive.discard(process)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]


def _serve(
    sending: Connection,
    gpu: str | None,
    cores: int | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """What a worker's process does; if a library crashes it, the standard error says where."""
    faulthandler.enable(file=2)
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if cores is not None:
        torch.set_num_threads(cores)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    result = function(*args, **kwargs)
    with suppress(BrokenPipeError):  # a parent that was killed
        sending.send(result)


def _stop_with_parent() -> None:
    """A worker whose parent was killed stops as if it had been told to."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _hold_interrupts() -> None:
    """Ctrl-C goes to all processes of a terminal; those that this thread starts leave it to the parent."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # starting it later would let interrupts through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"
