"""Workers on this machine: a fresh process for every run, each with its share of the cores or a GPU."""

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

GRACE = 60.0
"""Seconds in which a worker that is told to stop may save its checkpoint."""


class ProcessEnded(Exception):
    """A worker's process ended without a result: it was killed, or the machine ran out of memory."""


class Processes(Executor):
    """An executor that starts one process per call, so that one that is killed takes nothing with it.

    It runs `workers` at a time: by default one per GPU, else one per core, and at most `most`. If there are
    several GPUs, each process sees one. Left by an exception, such as Ctrl-C, it sends its processes SIGTERM,
    on which training saves a checkpoint.
    """

    def __init__(self, workers: int | None = None, most: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise RankriseError(f"workers is {workers}: pass at least 1.")
        every = ",".join(map(str, range(torch.cuda.device_count())))
        named = os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")
        gpus, cores = [name.strip() for name in named if name.strip()], allowed_cores()
        count = workers or max(1, min(len(gpus) or cores, most or cores))
        self._threads = ThreadPoolExecutor(count, initializer=_block_interrupts)
        self._cores = None if "OMP_NUM_THREADS" in os.environ else max(1, cores // count)
        self._gpus: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        for number in range(count):
            self._gpus.put(gpus[number % len(gpus)] if len(gpus) > 1 else None)
        self._lock = threading.Lock()  # two threads that reap a child at once lose its exit code
        self._alive: set[BaseProcess] = set()
        self._stopped = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn`, which its process imports by name, as soon as a worker is free."""
        return self._threads.submit(self._call, fn, args, kwargs)

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Wait for the calls; after an exception, end their processes, which may save their state first."""
        if kind is not None:
            with self._lock:
                self._stopped = True
                alive = set(self._alive)
            self._threads.shutdown(wait=False, cancel_futures=True)
            for process in alive:
                process.terminate()
            for process in alive:
                if not wait([process.sentinel], GRACE):
                    process.kill()
        self._threads.shutdown()

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        gpu = self._gpus.get()
        try:
            context = get_context("spawn")
            receiving, sending = context.Pipe(duplex=False)
            with receiving:
                with sending, self._lock:
                    if self._stopped:
                        raise ProcessEnded("the workers were stopped before it began")
                    call = (sending, gpu, self._cores, function, args, kwargs)
                    process = context.Process(target=_serve, args=call)
                    process.start()
                    self._alive.add(process)
                try:
                    return receiving.recv()
                except EOFError:
                    pass
                finally:
                    wait([process.sentinel])
                    with self._lock:
                        process.join()
                        self._alive.discard(process)
                code = process.exitcode or 0
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
                raise ProcessEnded(f"its process {how}")
        finally:
            self._gpus.put(gpu)


def _serve(
    sending: Connection,
    gpu: str | None,
    cores: int | None,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    """Call a function in a worker's process."""
    faulthandler.enable(file=2)  # if a library crashes, standard error says where
    if gpu is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = gpu
    if cores is not None:
        torch.set_num_threads(cores)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    result = function(*args, **kwargs)
    with suppress(BrokenPipeError):  # the parent was killed
        sending.send(result)


def _stop_with_parent() -> None:
    """Stop a worker by SIGTERM when its parent is killed."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _block_interrupts() -> None:
    """Keep Ctrl-C, which a terminal sends to all processes, from those that this thread starts."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # starting it later would let interrupts through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
