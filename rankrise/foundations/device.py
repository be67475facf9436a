"""The device that computes, checked before anything is computed, and the cores that this process may use."""

import os

import torch

from rankrise.foundations.errors import RankriseError


def usable(device: str) -> str:
    """The device, if it can be used here.

    >>> usable("cpu")
    'cpu'
    >>> usable("meta")
    Traceback (most recent call last):
    rankrise.RankriseError: the device 'meta' cannot be used here: pass cpu, or cuda where there is a GPU.
    """
    try:
        holds_numbers = bool(torch.zeros(1, device=device).cpu() == 0)
    except (RuntimeError, AssertionError, NotImplementedError):
        holds_numbers = False
    if not holds_numbers:
        raise RankriseError(
            f"the device {device!r} cannot be used here: pass cpu, or cuda where there is a GPU."
        )
    return device


def allowed_cores() -> int:
    """How many of the machine's cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
