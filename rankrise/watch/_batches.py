"""Work on many heads: in chunks that bound the memory, on all the cores that torch may use."""

import ctypes
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

# Bytes of a chunk's input in float64. On the CPU it should stay in the caches.
CHUNK_BYTES = 2**23
ACCELERATOR_CHUNK_BYTES = 2**30

Item = TypeVar("Item")
Result = TypeVar("Result")

_set_threads_here: Callable[[int], object] | None
try:
    _set_threads_here = ctypes.CDLL(None).omp_set_num_threads
except (AttributeError, OSError, TypeError):  # no OpenMP, or Windows
    _set_threads_here = None


def batched(function: Callable[..., Tensor], *tensors: Tensor, larger: int = 1) -> Tensor:
    """Apply `function` chunk by chunk, as [heads, a, b], to tensors [..., a, b] with equal leading sizes.

    On the CPU, threads share the chunks. Chunks are `larger` times the usual size for a function of many
    small steps. Gradients and autocast are off.

    >>> batched(lambda matrices: matrices.sum((-2, -1)), torch.ones(2, 3, 4, 5))
    tensor([[20., 20., 20.],
            [20., 20., 20.]])
    """
    batch, device = tensors[0].shape[:-2], tensors[0].device
    flat = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in tensors]
    heads, on_cpu = len(flat[0]), device.type == "cpu"
    room = larger * CHUNK_BYTES if on_cpu else ACCELERATOR_CHUNK_BYTES
    most = max(1, room // sum(8 * tensor[0].numel() for tensor in flat))
    pieces = 2 * torch.get_num_threads() if on_cpu and heads > 1 else 1
    chunks = list(zip(*(tensor.split(min(most, math.ceil(heads / pieces))) for tensor in flat), strict=True))
    if on_cpu:
        results = in_parallel(lambda chunk: function(*chunk), chunks)
    else:
        with torch.no_grad(), without_autocast(device.type):
            results = [function(*chunk) for chunk in chunks]
    result = torch.cat(results)
    return result.reshape((*batch, *result.shape[1:]))


def in_parallel(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Map `function` over `items` on `torch.get_num_threads()` cores, without gradients and autocast.

    torch hands a batch of small matrices to LAPACK one after another and lets each call use all threads,
    which is slower than one call per thread.

    >>> in_parallel(lambda size: torch.linalg.matrix_norm(torch.eye(size)).item(), [1, 4, 9])
    [1.0, 2.0, 3.0]
    """

    def plainly(item: Item) -> Result:
        with torch.no_grad(), without_autocast("cpu"):
            return function(item)

    threads = torch.get_num_threads()
    workers = min(threads, len(items))
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

    >>> with torch.autocast("cpu", torch.bfloat16), without_autocast("cpu"):
    ...     (torch.eye(2) @ torch.eye(2)).dtype
    torch.float32
    """
    enabled = torch.is_autocast_enabled(device)
    torch.set_autocast_enabled(device, False)
    try:
        yield
    finally:
        torch.set_autocast_enabled(device, enabled)


def use_threads(number: int) -> None:
    """Set how many cores torch uses in the calling thread alone.

    `torch.set_num_threads` would also change what new threads start with, so it only serves where torch is
    built without OpenMP.
    """
    torch.get_num_threads()  # torch sets a thread's number when it is first needed, and not again
    (_set_threads_here or torch.set_num_threads)(number)
