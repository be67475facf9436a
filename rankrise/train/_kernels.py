"""What computes a step: threads, the attention that is preferred, and only kernels that repeat their bits."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from rankrise.recipes.train_settings import TrainSettings


@contextmanager
def chosen_kernels(settings: TrainSettings) -> Iterator[None]:
    """Let torch compute as the settings ask, and as before when this ends."""
    with _threads(settings.threads), _attention(settings.attention), _same_bits(settings.deterministic):
        yield


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _attention(name: str) -> Iterator[None]:
    """Let `scaled_dot_product_attention` prefer one kernel on a GPU; where it cannot serve, others do."""
    if name == "auto":
        yield
        return
    kernels = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "math": SDPBackend.MATH,
    }
    wanted = kernels["cudnn" if name == "short" else name]
    others = [kernel for kernel in kernels.values() if kernel != wanted]
    with sdpa_kernel([wanted, *others], set_priority=True):
        yield


@contextmanager
def _same_bits(wanted: bool) -> Iterator[None]:
    """Let torch use no kernel that adds in whatever order its threads come, and choose none by its speed."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch asks for it; its own size on an H200
    flags: Any = torch.utils.deterministic
    before, filled = torch.get_deterministic_debug_mode(), flags.fill_uninitialized_memory
    torch.use_deterministic_algorithms(wanted)
    flags.fill_uninitialized_memory = False  # with NaN: it finds mistakes, and takes time
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        flags.fill_uninitialized_memory = filled
