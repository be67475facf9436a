"""Workers elsewhere: a Dask cluster, and Slurm through submitit."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require

SHARED = ("name", "timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
"""submitit's options for every cluster; others are Slurm's own, such as partition or account."""


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


class _Resumable:
    """A call that submitit submits again when its job's time is over; the run resumes from its folder."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def checkpoint(self, *args: Any, **kwargs: Any) -> Any:
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self, *args, **kwargs)
