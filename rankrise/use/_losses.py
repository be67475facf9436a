"""Losses of the models of transformers, from a batch of their inputs."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._weights import is_causal

IGNORED = -100
"""The label that transformers leaves out of the loss."""


def sampled(model: Any, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
    """The mean cross-entropy of labels drawn from the model's own predictions.

    `batch` is what a causal model or classifier of transformers takes. The gradients have the moment of the
    true Fisher matrix, even where the data's own labels are predicted almost surely and give hardly any
    gradient. For repeatable results pass `functools.partial(use.sampled, generator=...)` to `use.moments`.
    """
    logits, counted = _logits(model, batch)
    if not bool(logits.isfinite().all()):
        raise RankriseError(f"{type(model).__name__} gives infinite or undefined outputs: check its weights.")
    logits = logits[counted]
    with torch.no_grad():
        labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return nn.functional.cross_entropy(logits, labels)


def labelled(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean cross-entropy of the data's labels; a causal model without labels predicts its own input."""
    logits, counted = _logits(model, batch)
    labels = batch.get("labels", batch.get("input_ids") if is_causal(model) else None)
    if labels is None:
        raise RankriseError("A batch has no labels: add them.")
    if is_causal(model):
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return nn.functional.cross_entropy(logits[counted], labels[counted])


def _logits(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits in float32, and a mask of the predictions that count."""
    output = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    logits = getattr(output, "logits", None)
    if logits is None or logits.ndim not in (2, 3) or logits.shape[-1] < 2:
        raise RankriseError(
            f"{type(model).__name__} gives no logits of classes or tokens: pass a loss of your own."
        )
    counted = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    if "labels" in batch:
        counted = batch["labels"] != IGNORED
    if logits.ndim == 3:
        if "attention_mask" in batch:
            counted = counted & batch["attention_mask"].bool()
        if is_causal(model):
            counted = nn.functional.pad(counted[:, 1:], (0, 1), value=False)  # of the token to be predicted
    return logits.float(), counted
