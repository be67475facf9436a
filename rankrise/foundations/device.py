"""The device that computes, and the cores that this process may use."""

import os

import torch

from rankrise.foundations.errors import RankriseError


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
