"""`use.moments`: sums of `x x^T` on both sides of every layer, gathered while losses are differentiated."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._moments import Moment, Moments
from rankrise.use._weights import fingerprint, is_causal, linear_layers
from rankrise.watch._heads import unwrap

BLOCK = 4096
"""A longer side has its moment in blocks up to this long."""

IGNORED = -100
"""The label that transformers leaves out of the loss."""


def moments(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    *,
    block: int = BLOCK,
    only: Callable[[str], bool] = lambda name: True,
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda examples: None,
) -> Moments:
    """Measure second moments of every linear layer's inputs, and of the loss gradients at its outputs.

    `loss(model, batch)` is the mean loss of a batch, such as `use.sampled`. Moments stay on the model's
    device and take 4 bytes per entry: 40 GB for Llama 2 7B, or 10 GB with `block=1024`. What you pass as
    `about` is kept in their file.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> found = moments(model, [x], lambda model, batch: model(batch).mean())
    >>> found.inputs["0"].blocks[0], found.outputs["1"].blocks[0]
    (tensor([[ 5.,  7.],
            [ 7., 10.]]), tensor([[1.]]))
    """
    network = unwrap(model)
    gathered = {layer.name: _Layer(block) for layer in linear_layers(network) if only(layer.name)}
    examples = 0
    with _listening(network, gathered), torch.enable_grad():
        for batch in batches:
            count = _count(batch)
            for layer in gathered.values():
                layer.examples = count
            value = loss(model, batch)
            if not torch.isfinite(value):
                raise RankriseError(f"The loss of a batch is {value.item()}: check data and model.")
            if value.requires_grad:
                value.backward()
            examples += count
            progress(examples)
    reached = {name: layer for name, layer in gathered.items() if layer.inputs.tokens}
    if not reached:
        raise RankriseError("No loss of a batch depends on a linear layer: pass batches, and a loss of them.")
    found = Moments(
        inputs={name: layer.inputs.mean(layer.inputs.tokens) for name, layer in reached.items()},
        outputs={name: layer.outputs.mean(examples) for name, layer in reached.items()},
        examples=examples,
        about={"model": fingerprint(network), "block": block, **(about or {})},
        tokens={name: layer.inputs.tokens for name, layer in reached.items()},
    )
    found.warn_if_few()
    return found


def sampled(model: Any, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
    """The mean cross-entropy of labels drawn from the model's own predictions.

    `batch` is what a causal model or classifier of transformers takes. The gradients have the moment of the
    true Fisher matrix, even where the data's labels are almost certain. For repeatable results pass
    `functools.partial(use.sampled, generator=...)` to `use.moments`.
    """
    logits, counted = _logits(model, batch)
    logits = logits[counted]
    drawn = torch.multinomial(logits.detach().softmax(-1), 1, generator=generator)
    return nn.functional.cross_entropy(logits, drawn.squeeze(-1))


def labelled(model: Any, batch: Mapping[str, Tensor]) -> Tensor:
    """The mean cross-entropy of the data's labels; a causal model without labels predicts its own input."""
    logits, counted = _logits(model, batch)
    if is_causal(model):
        labels = batch.get("labels", batch["input_ids"])
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    else:
        labels = batch["labels"]
    return nn.functional.cross_entropy(logits[counted], labels[counted])


def _logits(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits in float32, and a mask of the predictions that count."""
    output = model(**{name: tensor for name, tensor in batch.items() if name != "labels"})
    logits = getattr(output, "logits", None)
    if logits is None or logits.ndim not in (2, 3) or logits.shape[-1] < 2:
        raise RankriseError(f"{type(model).__name__} gives no logits of classes: pass a loss of your own.")
    counted = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    if "labels" in batch:
        counted = batch["labels"] != IGNORED
    if logits.ndim == 3 and "attention_mask" in batch:
        counted = counted & batch["attention_mask"].bool()
    if logits.ndim == 3 and is_causal(model):
        counted = nn.functional.pad(counted[:, 1:], (0, 1), value=False)  # of the token to be predicted
    return logits.float(), counted


def _count(batch: Any) -> int:
    """The number of examples in a batch: the length of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((count for count in map(_count, parts) if count), 0)


class Sum:
    """A sum of `x x^T` over tokens, in blocks."""

    def __init__(self, block: int) -> None:
        self.block, self.blocks, self.tokens = block, list[Tensor](), 0

    def add(self, rows: Tensor, factor: float = 1.0) -> None:
        """Add `factor * rows^T rows`. [tokens, size]"""
        if not self.blocks:
            size, count = rows.shape[1], -(-rows.shape[1] // self.block)
            sizes = [size // count + (place < size % count) for place in range(count)]
            self.blocks = [torch.zeros(side, side, device=rows.device) for side in sizes]
        parts = rows.split([len(total) for total in self.blocks], dim=1)
        for total, part in zip(self.blocks, parts, strict=True):
            total.addmm_(part.mT, part, alpha=factor)
        self.tokens += len(rows)

    def mean(self, count: int) -> Moment:
        """The sum over `count`, in its own memory."""
        return Moment(tuple(total.div_(count) for total in self.blocks))


class _Layer:
    """The sums of one layer, and the hook that adds to them."""

    def __init__(self, block: int) -> None:
        self.inputs, self.outputs = Sum(block), Sum(block)
        self.examples = 0
        """Examples in the current batch."""

    def forward(
        self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        """Have the backward pass add the tokens that it reaches."""
        inputs = (given[0] if given else next(iter(named.values()))).detach()
        first = not output.requires_grad
        if first:
            output = output.detach().requires_grad_()

        def backward(gradient: Tensor) -> None:
            rows = gradient.flatten(0, -2).float()
            reached = rows.abs().amax(1) != 0  # leaves out padding, and keeps nan
            self.outputs.add(rows[reached], float(self.examples) ** 2)
            self.inputs.add(inputs.flatten(0, -2)[reached].float())

        output.register_hook(backward)
        return output.clone() if first else output


@contextmanager
def _listening(model: nn.Module, layers: Mapping[str, _Layer]) -> Iterator[None]:
    """Follow every forward and backward pass; no weight gets a gradient meanwhile."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = model.training
    handles = [
        model.get_submodule(name).register_forward_hook(layer.forward, with_kwargs=True)
        for name, layer in layers.items()
    ]
    model.eval()
    model.requires_grad_(False)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
        model.train(training)
