"""Workers for a sweep: processes of this machine, a Dask cluster, or Slurm through submitit."""

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE, Popen
from typing import Any

import torch

from rankrise.foundations.device import allowed_cores
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require

SERVE = "from rankrise.train._workers import serve; serve()"
SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
"""submitit's options for every cluster; others are Slurm's own, such as partition or account."""


class Processes(ThreadPoolExecutor):
    """An executor with a process per call, so that one that is killed takes nothing with it.

    It runs `workers` at a time: by default one per GPU, else one per core, and at most `most`.
    """

    def __init__(self, workers: int | None = None, most: int | None = None) -> None:
        every = ",".join(map(str, range(torch.cuda.device_count())))
        named = os.environ.get("CUDA_VISIBLE_DEVICES", every).split(",")
        gpus, cores = [name.strip() for name in named if name.strip()], allowed_cores()
        count = workers or max(1, min(len(gpus) or cores, most or cores))
        super().__init__(count)
        self._environments: SimpleQueue[dict[str, str]] = SimpleQueue()
        for number in range(count):
            environment = {"OMP_NUM_THREADS": str(max(1, cores // count)), **os.environ}
            if len(gpus) > 1:
                environment["CUDA_VISIBLE_DEVICES"] = gpus[number % len(gpus)]
            self._environments.put(environment)
        self._lock = threading.Lock()
        self._alive: set[Popen[bytes]] = set()
        self._stopped = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call `fn`, which its process imports by name, as soon as a worker is free."""
        return super().submit(self._call, partial(fn, *args, **kwargs))

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Wait for the calls; after an exception, end their processes, which may save their state first."""
        if kind is not None:
            with self._lock:
                self._stopped = True
                for process in self._alive:
                    process.terminate()
        self.shutdown(cancel_futures=kind is not None)

    def _call(self, call: partial[Any]) -> Any:
        environment = self._environments.get()
        try:
            with self._lock:
                if self._stopped:
                    raise ChildProcessError("the workers were stopped before it began")
                # In a session of its own Ctrl-C reaches this process alone, which then ends its workers.
                command = [sys.executable, "-c", SERVE]
                process = Popen(command, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True)
                self._alive.add(process)
            result, _ = process.communicate(pickle.dumps((os.getpid(), sys.path)) + pickle.dumps(call))
            with self._lock:
                self._alive.remove(process)
        finally:
            self._environments.put(environment)
        if result:
            return pickle.loads(result)
        code = process.returncode
        raise ChildProcessError(f"ended with {signal.Signals(-code).name if code < 0 else f'code {code}'}")


def serve() -> None:
    """Make the call that `Processes` sends to standard input, and send its result to standard output."""
    faulthandler.enable()  # if a library crashes, standard error says where
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what training prints
    parent, sys.path[:] = pickle.load(sys.stdin.buffer)
    call = pickle.load(sys.stdin.buffer)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    result = pickle.dumps(call())
    with suppress(BrokenPipeError), results:  # the parent was killed
        results.write(result)


@contextmanager
def dask_executor(address: str) -> Iterator[Executor]:
    """A Dask cluster by its scheduler's address, with one thread per worker: a run draws from its process."""
    distributed = require("distributed", extra="dask", purpose="a sweep on Dask")
    try:
        client = distributed.Client(address, timeout=10)
    except (OSError, ValueError) as error:
        raise RankriseError(f"no Dask scheduler answers at {address!r} ({first_line(error)}).") from error
    with client:
        if any(threads > 1 for threads in client.nthreads().values()):
            raise RankriseError("a Dask worker has several threads: pass --nthreads 1 to it.")
        yield client.get_executor(pure=False)


@contextmanager
def slurm_executor(options: str, folder: str | Path) -> Iterator[Executor]:
    """One Slurm job per call, with options such as "partition=gpu"; scripts and logs go to `folder`.

    With "cluster=local" the jobs are processes of this machine, to try it out.
    """
    submitit = require("submitit", extra="slurm", purpose="a sweep on Slurm")
    given: dict[str, Any] = {}
    for word in options.split(","):
        name, equals, value = (part.strip() for part in word.partition("="))
        if not equals:
            raise RankriseError(f"--slurm has {word!r}: pass name=value, separated by commas.")
        name = name if name in (*SHARED, "cluster") or name.startswith("slurm_") else f"slurm_{name}"
        given[name] = int(value) if value.isdecimal() else value
    jobs = submitit.AutoExecutor(folder=folder, cluster=given.pop("cluster", "slurm"))
    jobs.update_parameters(**given)
    with _Jobs(jobs) as executor:
        yield executor


class _Jobs(ThreadPoolExecutor):
    """submitit's executor as one of `concurrent.futures`, with a thread that waits for each job."""

    def __init__(self, jobs: Any) -> None:
        super().__init__(10_000)  # it starts no more than there are jobs
        self._jobs = jobs
        self._submitted: list[Any] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Submit a job."""
        job = self._jobs.submit(_Resumable(fn), *args, **kwargs)
        self._submitted.append(job)
        return super().submit(job.result)

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: Any) -> None:
        """Wait for the jobs; after an exception, cancel them."""
        if kind is not None:
            for job in self._submitted:
                job.cancel(check=False)
        self.shutdown()


class _Resumable(partial[Any]):
    """A call that submitit submits again when its job's time is over; the run resumes from its folder."""

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args, **kwargs)
