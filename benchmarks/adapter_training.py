"""Training and scoring for `benchmarks/adapters.py`: transformers' models on tensors on their device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Examples = dict[str, Tensor]
"""Inputs of a transformers model, and labels; the first dimension counts examples."""

DIVERGED = 1e9
"""In place of a sum of losses that is not a number, so that another rate is chosen."""


@contextmanager
def tensor_float_32() -> Iterator[None]:
    """Products of float32 matrices by a GPU's tensor cores, meanwhile."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@tensor_float_32()
def fit(
    model: Any,
    examples: Examples,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    after_step: Callable[[int], None] = lambda step: None,
) -> None:
    """AdamW with a warm-up of a tenth and a linear end, on what of the model takes gradients."""
    device = next(model.parameters()).device
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0.0, fused=device.type == "cuda")
    order = _order(count_of(examples), steps, batch, seed).to(device)
    torch.manual_seed(seed)
    model.train()
    for step in range(steps):
        share = min((step + 1) / max(1, steps // 10), (steps - step) / max(1, steps - steps // 10))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, share)
        with in_half(model):
            loss = output_of(model, {name: tensor[order[step]] for name, tensor in examples.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        after_step(step)
        optimiser.zero_grad()
    model.eval()


@tensor_float_32()
@torch.no_grad()
def scores(model: Any, examples: Examples) -> dict[str, float]:
    """The mean loss, and for classes the accuracy."""
    count, losses, right = count_of(examples), [], []
    size = 1024 if "labels" in examples else 32
    for start in range(0, count, size):
        part = {name: tensor[start : start + size] for name, tensor in examples.items()}
        with in_half(model):
            output = output_of(model, part)
        losses.append(output.loss.double() * count_of(part))
        if "labels" in part:
            right.append((output.logits.argmax(-1) == part["labels"]).sum())
    found = {"loss": float(torch.stack(losses).sum().nan_to_num(DIVERGED).clamp(max=DIVERGED)) / count}
    return found | ({"accuracy": int(torch.stack(right).sum()) / count} if right else {})


def output_of(model: Any, batch: Examples) -> Any:
    """What the model gives, its loss among it: of a text without labels, that of each next token."""
    return model(**batch, **({} if "labels" in batch else {"labels": batch["input_ids"]}))


def count_of(examples: Examples) -> int:
    return len(next(iter(examples.values())))


def sample(examples: Examples, count: int, batch: int, seed: int) -> list[Examples]:
    """Batches of examples drawn without repetition."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(count_of(examples), generator=generator)[:count]
    order = order.to(next(iter(examples.values())).device)
    return [{name: tensor[rows] for name, tensor in examples.items()} for rows in order.split(batch)]


def in_half(model: Any) -> Any:
    """On a GPU, bfloat16 for wide models: of narrow ones it is more kernels to launch, and no faster."""
    device = next(model.parameters()).device.type
    return torch.autocast(device, torch.bfloat16, enabled=device == "cuda" and model.config.hidden_size > 512)


def _order(count: int, steps: int, batch: int, seed: int) -> Tensor:
    """The examples of each step: every one once before any comes again. [steps, batch]"""
    generator = torch.Generator().manual_seed(seed)
    rounds = -(-steps * batch // count)
    every = torch.cat([torch.randperm(count, generator=generator) for _ in range(rounds)])
    return every[: steps * batch].view(steps, batch)
