"""Losses of transformers' models: with the labels of the data, or with labels drawn from the model."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.use._models import is_causal

IGNORED = -100
"""Transformers' label of what does not count."""


def sampled(model: Any, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
    """The mean cross-entropy of labels drawn from the model's own predictions, for a batch as transformers'
    causal and classification models take it.

    Its gradients have the moment of the true Fisher matrix: the curvature of the loss at a minimum, also
    where the data's own labels are predicted almost surely and give hardly any gradient. Labels are drawn
    from `generator`, on the model's device, or from torch's own; so that calls give the same, pass
    `functools.partial(use.sampled, generator=torch.Generator().manual_seed(0))` to `use.moments`.
    """
    logits, counted = _logits(model, batch)
    if not bool(logits.isfinite().all()):
        raise RankriseError(
            f"{type(model).__name__} gives outputs that are not finite: check its weights and the data."
        )
    logits = logits[counted]
    with torch.no_grad():
        labels = torch.multinomial(logits.softmax(-1), 1, generator=generator).squeeze(-1)
    return torch.nn.functional.cross_entropy(logits, labels)


def labelled(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean cross-entropy of the data's labels; of a causal model's own inputs where there are none."""
    logits, counted = _logits(model, batch)
    labels = batch.get("labels", batch.get("input_ids") if is_causal(model) else None)
    if labels is None:
        raise RankriseError("A batch has no labels, and no tokens to predict instead: give labels.")
    if is_causal(model):
        labels = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return torch.nn.functional.cross_entropy(logits[counted], labels[counted])


def _logits(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits, float32, and which of them are predictions that count."""
    inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
    output = model(**inputs)
    logits = getattr(output, "logits", None)
    if logits is None or logits.ndim not in (2, 3) or logits.shape[-1] < 2:
        raise RankriseError(
            f"{type(model).__name__} gives no logits of classes or tokens: pass a loss of your own, which "
            "may draw labels itself."
        )
    labels = batch.get("labels")
    if logits.ndim == 2:
        counted = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return logits.float(), counted if labels is None else labels != IGNORED
    counted = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
    if labels is not None:
        counted = labels != IGNORED
    if "attention_mask" in batch:
        counted = counted & batch["attention_mask"].bool()
    if is_causal(model):
        counted = torch.nn.functional.pad(counted[:, 1:], (0, 1), value=False)  # of the token to be predicted
    return logits.float(), counted
