"""Workers for a sweep: processes of this machine, a Dask cluster, or Slurm through submitit."""

import faulthandler
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from rankrise.foundations.device import allowed_cores
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require

GRACE = 60.0
"""Seconds that a stopping worker has to save its checkpoint."""
SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
"""submitit's options for every cluster; others are Slurm's own, such as partition or account."""


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
    parent = parent_process()

    def stop_with_parent() -> None:
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_with_parent, daemon=True).start()
    result = function(*args, **kwargs)
    with suppress(BrokenPipeError):  # the parent was killed
        sending.send(result)


def _block_interrupts() -> None:
    """Keep Ctrl-C, which a terminal sends to all processes, from those that this thread starts."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # starting it later would let interrupts through again
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


@contextmanager
def dask_executor(address: str, workers: int | None = None) -> Iterator[Executor]:
    """A Dask cluster by the address of its scheduler, or "local" for one on this machine while it is used.

    Its workers must have one thread each, because training draws random numbers from its process.
    """
    distributed = require("distributed", extra="dask", purpose="a sweep on Dask")
    with ExitStack() as stack:
        if address == "local":
            config = require("dask", extra="dask", purpose="a sweep on Dask").config
            stack.enter_context(config.set({"distributed.worker.daemon": False}))  # workers may load data
            cluster = distributed.LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=None
            )
            client = distributed.Client(stack.enter_context(cluster))
        else:
            try:
                client = distributed.Client(address, timeout=10)
            except (OSError, ValueError) as error:
                raise RankriseError(
                    f"no Dask scheduler answers at {address!r} ({first_line(error)}): pass its address, such "
                    "as tcp://host:8786, or 'local'."
                ) from error
        stack.enter_context(client)
        if any(threads > 1 for threads in client.nthreads().values()):
            raise RankriseError(
                "a Dask worker has several threads, but a run needs a process: pass --nthreads 1 to it."
            )
        yield client.get_executor(pure=False)


@contextmanager
def slurm_executor(options: str, folder: str | Path) -> Iterator[Executor]:
    """One Slurm job per call; scripts and logs go to `folder`.

    `options` are submitit's and Slurm's, as "partition=gpu,gpus_per_node=1". With "cluster=local" the jobs
    are processes of this machine, to try it out.
    """
    submitit = require("submitit", extra="slurm", purpose="a sweep on Slurm")
    given: dict[str, Any] = {}
    for word in options.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals or not name or not value:
            raise RankriseError(f"--slurm has {word!r}: pass name=value, separated by commas.")
        if name in ("nodes", "tasks_per_node"):
            raise RankriseError(f"--slurm has {name}: leave it out, a run is one task on one node.")
        name = name if name in (*SHARED, "cluster") or name.startswith("slurm_") else f"slurm_{name}"
        given[name] = int(value) if value.isdecimal() else value
    try:
        jobs = submitit.AutoExecutor(folder=folder, cluster=given.pop("cluster", "slurm"))
        jobs.update_parameters(**given)
    except (NameError, ValueError, RuntimeError, AssertionError, TypeError) as error:
        raise RankriseError(f"submitit refuses --slurm {options} ({first_line(error)}).") from error
    executor = _Jobs(jobs)
    try:
        yield executor
    finally:
        executor.closed.set()


class _Jobs(Executor):
    """submitit's executor as one of `concurrent.futures`; a thread watches the jobs."""

    def __init__(self, jobs: Any) -> None:
        self._jobs = jobs
        self._waiting: dict[Future[Any], Any] = {}
        self.closed = threading.Event()
        threading.Thread(target=self._look_after, daemon=True).start()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a job; cancelling its future cancels the job."""
        job = self._jobs.submit(_Resumable(fn), *args, **kwargs)
        future: Future[Any] = Future()
        future.add_done_callback(lambda done: job.cancel(check=False) if done.cancelled() else None)
        self._waiting[future] = job
        return future

    def _look_after(self) -> None:
        while not self.closed.wait(0.5):
            for future, job in list(self._waiting.items()):
                if not future.cancelled() and not job.done():
                    continue
                del self._waiting[future]
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(job.result())
                    except Exception as error:
                        future.set_exception(error)


class _Resumable(partial[Any]):
    """A call that submitit submits again when its job's time is over; the run resumes from its folder."""

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args, **kwargs)
