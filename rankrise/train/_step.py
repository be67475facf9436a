"""One step of training or validation: eager, compiled, or replayed as a CUDA graph; and its kernels."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import copy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import Batch, Task

Step = Callable[[Batch], Tensor]
"""Takes a batch. In training it updates the weights and returns the loss before the update, detached, []; in
validation it returns the score, [k]."""

EAGER_CALLS = 3  # before a CUDA graph is captured: compilation and lazy allocations are done
FLASH, CUDNN = SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION
KERNELS = {  # in the order in which they are tried
    "auto": [],
    "flash": [FLASH, CUDNN, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
    "cudnn": [CUDNN, FLASH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH],
}


def steps_of(
    settings: TrainSettings,
    accelerator: Any,
    task: Task,
    model: nn.Module,
    optimiser: Any,
    before_capture: Callable[[], object],
) -> tuple[Step, Step]:
    """The step of training and the score of validation, computed as the settings ask.

    `before_capture` stops other threads' work on the GPU: an allocation would end the capture of a graph.
    """
    alone = accelerator.num_processes == 1
    if settings.compile != "none":
        compiled, task = partial(torch.compile, fullgraph=alone, dynamic=False), copy(task)
        task.read, task.judged = compiled(task.read), compiled(task.judged)  # type: ignore[method-assign]
    share = settings.batch_size // accelerator.num_processes
    size = settings.micro_batch_size or share
    cast = partial(torch.autocast, accelerator.device.type, torch.bfloat16, settings.precision == "bf16")
    # In validation a compiled network is used as in training, with gradients, or it would be compiled again.
    # Dropout rules that out, and so do several processes, which would wait for the gradients.
    as_in_training = settings.compile != "none" and alone and settings.dropout == 0

    def step(batch: Batch) -> Tensor:
        parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
        total = torch.zeros((), device=accelerator.device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else accelerator.no_sync(model):
                with cast():
                    loss = task.loss(model, *part) * (len(part[0]) / share)
                loss.backward()
                total += loss.detach()
        if settings.clip:
            accelerator.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
        optimiser.zero_grad()
        return total

    def score(batch: Batch) -> Tensor:
        model.train(as_in_training)
        with torch.set_grad_enabled(as_in_training), cast():
            scored = task.score(model, *batch)
        model.train()
        return scored

    on_gpu = accelerator.device.type == "cuda"
    if settings.cuda_graph and settings.compile != "none" and alone and on_gpu:
        stream, memory = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
        graphed = partial(_graphed, stream=stream, memory=memory, before_capture=before_capture)
        return graphed(step), graphed(score)
    return step, score


def _graphed(
    function: Step, stream: torch.cuda.Stream, memory: Any, before_capture: Callable[[], object]
) -> Step:
    """Run the first calls as they are, capture one, then replay it. A result holds until the next call."""
    calls = 0
    graph = torch.cuda.CUDAGraph()
    inputs: Batch = ()
    output = torch.empty(0)

    def replay(batch: Batch) -> Tensor:
        nonlocal calls, inputs, output
        calls += 1
        if calls <= EAGER_CALLS:
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                result = function(batch)
            torch.cuda.current_stream().wait_stream(stream)
            return result
        if not inputs:
            inputs = tuple(tensor.clone() for tensor in batch)
            before_capture()
            with torch.cuda.graph(graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
                output = function(inputs)
        for held, tensor in zip(inputs, batch, strict=True):
            held.copy_(tensor)
        graph.replay()
        return output

    return replay


@contextmanager
def chosen_kernels(settings: TrainSettings) -> Iterator[None]:
    """Set threads, attention kernel and determinism as the settings ask, and restore them at the end."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # determinism needs it; the H200's own size
    flags: Any = torch.utils.deterministic
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    fill = flags.fill_uninitialized_memory
    kernels = KERNELS["cudnn" if settings.attention == "short" else settings.attention]
    with sdpa_kernel(kernels, set_priority=True) if kernels else nullcontext():
        try:
            torch.set_num_threads(settings.threads or threads)
            torch.use_deterministic_algorithms(settings.deterministic)
            flags.fill_uninitialized_memory = False  # filling with NaN finds mistakes, but takes time
            yield
        finally:
            torch.set_num_threads(threads)
            torch.set_deterministic_debug_mode(mode)
            flags.fill_uninitialized_memory = fill
