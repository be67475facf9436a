"""Seconds by the clock, with all work of a GPU done before and after."""

import time
from collections.abc import Callable
from typing import Any

import torch


def timed(work: Callable[[], Any], device: torch.device | str) -> tuple[float, Any]:
    """How long work takes, and its result."""
    synchronise(device)
    start = time.perf_counter()
    result = work()
    synchronise(device)
    return time.perf_counter() - start, result


def synchronise(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
