"""One update of the weights, run as it is written, compiled, or replayed as one CUDA graph."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._sources import Batch
from rankrise.train._task import Task

Step = Callable[[Batch], Tensor]
"""Takes a batch. In training it updates the weights and returns the loss before the update, detached, []; in
validation it returns the score, [k]."""

EAGER_CALLS = 3
"""Calls before a CUDA graph is captured, so that compilation and lazy allocations are done."""


def compiled(settings: TrainSettings, task: Task, plain: bool) -> tuple[Any, Any]:
    """The task's `loss` and `score`, compiled as the settings ask; `plain`: the model is not wrapped."""
    if settings.compile == "none":
        return task.loss, task.score
    mode = "max-autotune-no-cudagraphs" if settings.compile == "max-autotune" else "default"
    task = task.compiled(partial(torch.compile, fullgraph=plain, dynamic=False, mode=mode))
    return task.loss, task.score


def eager_step(
    settings: TrainSettings, accelerator: Any, model: nn.Module, optimiser: Any, loss_of: Any
) -> Step:
    """The step: forward and backward through each micro-batch, then one update."""
    share = settings.batch_size // accelerator.num_processes
    size = settings.micro_batch_size or share

    def step(batch: Batch) -> Tensor:
        parts = list(zip(*(tensor.split(size) for tensor in batch), strict=True))
        total = torch.zeros((), device=accelerator.device)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            with nullcontext() if last else accelerator.no_sync(model):
                with torch.autocast(
                    accelerator.device.type, torch.bfloat16, enabled=settings.precision == "bf16"
                ):
                    loss = loss_of(model, *part) * (len(part[0]) / share)
                loss.backward()
                total += loss.detach()
        if settings.clip:
            accelerator.clip_grad_norm_(model.parameters(), settings.clip)
        optimiser.step()
        optimiser.zero_grad()
        return total

    return step


def eager_score(settings: TrainSettings, accelerator: Any, model: nn.Module, score_of: Any) -> Step:
    """The score of a validation batch.

    A compiled network looks at it as it does in training, since one without gradients would have to be
    compiled as well; with dropout it has to be. Several processes would wait for the gradients.
    """
    alone = accelerator.num_processes == 1
    as_in_training = settings.compile != "none" and alone and settings.dropout == 0

    def score(batch: Batch) -> Tensor:
        model.train(as_in_training)
        try:
            with (
                torch.set_grad_enabled(as_in_training),
                torch.autocast(accelerator.device.type, torch.bfloat16, enabled=settings.precision == "bf16"),
            ):
                scored: Tensor = score_of(model, *batch)
        finally:
            model.train()
        return scored

    return score


def graphed(*functions: Step, before_capture: Callable[[], None]) -> list[Step]:
    """Each function as one CUDA graph: some calls run as they are, one is captured, the rest replay it.

    They compute in the same memory, so what one returns holds until any of them is called again.
    `before_capture` should still what other threads do on the GPU: their allocations would end a capture.
    """
    stream, memory = torch.cuda.Stream(), torch.cuda.graph_pool_handle()
    return [_graphed(function, stream, memory, before_capture) for function in functions]


def _graphed(
    function: Step, stream: torch.cuda.Stream, memory: Any, before_capture: Callable[[], None]
) -> Step:
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
