"""The device that computes, and the cores that this process may use, in threads that leave the caller's
settings alone."""

import ctypes
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

from rankrise.foundations.errors import RankriseError

Item = TypeVar("Item")
Result = TypeVar("Result")

_set_threads_here: Callable[[int], object] | None
try:
    _set_threads_here = ctypes.CDLL(None).omp_set_num_threads
except (AttributeError, OSError, TypeError):  # no OpenMP, or Windows
    _set_threads_here = None


def usable(device: str) -> str:
    """Return the device, or refuse one that cannot be used here."""
    try:
        torch.zeros(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RankriseError(f"the device {device!r} cannot be used here: pass cpu or another.") from error
    return device


def allowed_cores() -> int:
    """How many of the machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_parallel(
    function: Callable[[Item], Result], items: Sequence[Item], device: str = "cpu"
) -> list[Result]:
    """Map `function` over `items`, without gradients and autocast: on `torch.get_num_threads()` cores, or one
    after another on an accelerator.

    torch hands a batch of small matrices to LAPACK one after another and lets each call use all threads,
    which is slower than one call per thread.
    """

    def plainly(item: Item) -> Result:
        with torch.no_grad(), without_autocast(device):
            return function(item)

    threads = torch.get_num_threads()
    workers = min(threads, len(items)) if device == "cpu" else 1
    if workers <= 1:
        return [plainly(item) for item in items]
    try:
        with ThreadPoolExecutor(workers, initializer=use_threads, initargs=(threads // workers,)) as pool:
            return list(pool.map(plainly, items))
    finally:
        if _set_threads_here is None:
            torch.set_num_threads(threads)


@contextmanager
def without_autocast(device: str) -> Iterator[None]:
    """Autocast off in the calling thread, for one type of device.

    On exit `torch.autocast(device, enabled=False)` empties a cache that all threads share, under a lock. That
    deadlocks with a thread that compiles a model under autocast.
    """
    enabled = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, enabled)


def use_threads(number: int) -> None:
    """Set how many cores torch uses in the calling thread alone, where torch is built with OpenMP."""
    torch.get_num_threads()  # torch sets a thread's number when it is first needed, and not again
    (_set_threads_here or torch.set_num_threads)(number)
