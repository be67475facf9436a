"""`use.moments`: sums of `x x^T` on both sides of every layer, gathered while losses are differentiated."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._moments import Moment, Moments
from rankrise.use._weights import fingerprint, is_causal, linear_layers
from rankrise.watch._heads import unwrap

BLOCK = 4096
"""A longer side has its moment in blocks up to this long."""

DIAGONAL_ABOVE = 32768
"""Of a side longer than this, such as a vocabulary, only the diagonal is kept."""

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
    progress: Callable[[int], None] | None = None,
) -> Moments:
    """Measure second moments of every linear layer's inputs, and of the loss gradients at its outputs.

    `loss(model, batch)` is the mean loss of a batch, such as `use.sampled`. Moments stay on the model's
    device and take 4 bytes per entry: 35 GB for Llama 2 7B, or 9 GB with `block=1024`. What you pass as
    `about` is kept in their file.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> found = moments(model, [x], lambda model, batch: model(batch).mean())
    >>> found.inputs["0"].blocks[0], found.outputs["1"].blocks[0]
    (tensor([[ 5.,  7.],
            [ 7., 10.]]), tensor([[1.]]))
    """
    network = unwrap(model)
    gathered = _Gathered([matrix.name for matrix in linear_layers(network) if only(matrix.name)], block)
    examples = 0
    with gathered.listening(network):
        for batch in batches:
            gathered.examples = _count(batch)
            with torch.enable_grad():
                value = loss(model, batch)
                if not torch.isfinite(value):
                    raise RankriseError(f"The loss of a batch is {value.item()}: check data and model.")
                if value.requires_grad:
                    value.backward()
            gathered.end_batch()
            examples += gathered.examples
            if progress is not None:
                progress(examples)
    if not examples:
        raise RankriseError("There was no batch to measure moments on: pass some.")
    inputs, outputs, tokens = gathered.means(examples)
    if not inputs:
        raise RankriseError("The loss depends on no linear layer: pass the plain model and a loss of it.")
    facts = {"model": fingerprint(network), "block": block, **(about or {})}
    found = Moments(inputs, outputs, examples, facts, tokens)
    if found.too_few:
        warnings.warn(found.too_few, stacklevel=2)
    return found


def sampled(model: Any, batch: Mapping[str, Tensor], generator: torch.Generator | None = None) -> Tensor:
    """The mean cross-entropy of labels drawn from the model's own predictions.

    `batch` is what a causal model or classifier of transformers takes. The gradients have the moment of the
    true Fisher matrix, even where the data's labels are almost certain. For repeatable results pass
    `functools.partial(use.sampled, generator=...)` to `use.moments`.
    """
    logits, counted = _logits(model, batch)
    logits = logits[counted]
    if not logits.isfinite().all():
        raise RankriseError(f"{type(model).__name__} gives infinite or undefined outputs: check its weights.")
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
        raise RankriseError(f"{type(model).__name__} gives no logits of classes: pass a loss of your own.")
    counted = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    if "labels" in batch:
        counted = batch["labels"] != IGNORED
    if logits.ndim == 3:
        if "attention_mask" in batch:
            counted = counted & batch["attention_mask"].bool()
        if is_causal(model):
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
        size = rows.shape[1]
        if not self.blocks and size > DIAGONAL_ABOVE:
            self.blocks = [torch.zeros(size, device=rows.device)]
        elif not self.blocks:
            parts = -(-size // self.block)
            sizes = [size // parts + (place < size % parts) for place in range(parts)]
            self.blocks = [torch.zeros(side, side, device=rows.device) for side in sizes]
        parts = rows.split([len(total) for total in self.blocks], dim=1)
        for total, part in zip(self.blocks, parts, strict=True):
            if total.ndim == 1:
                total.add_(part.square().sum(0), alpha=factor)
            else:
                total.addmm_(part.mT, part, alpha=factor)
        self.tokens += len(rows)


def _mean(sums: tuple[Sum, ...], count: int) -> Moment:
    """The mean of one sum, in its memory, or of several together."""
    blocks = zip(*(each.blocks for each in sums), strict=True)
    return Moment(tuple(sum(parts[1:], parts[0]).div_(count) for parts in blocks))


class _Gathered:
    """The sums of all layers."""

    def __init__(self, layers: list[str], block: int) -> None:
        self.examples = 0
        """Examples in the current batch."""
        self._layers, self._block = layers, block
        self._inputs: dict[frozenset[str], Sum] = {}
        """By the layers that read a tensor and got a gradient at the same tokens."""
        self._outputs: dict[str, Sum] = {}
        self._reads: dict[Any, tuple[Tensor, list[tuple[str, Tensor]]]] = {}
        """Tensors read in this batch, and the tokens where each reader got a gradient."""

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Follow every forward and backward pass; no weight gets a gradient meanwhile."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        training = model.training
        handles = [
            model.get_submodule(name).register_forward_hook(partial(self._forward, name), with_kwargs=True)
            for name in self._layers
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

    def _forward(
        self, name: str, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        inputs = (given[0] if given else next(iter(named.values()))).detach()
        first = not output.requires_grad
        if first:
            output = output.detach().requires_grad_()
        # The tensor is kept until the batch ends, so no other can take its address.
        place = inputs.data_ptr(), inputs.shape, inputs.stride(), inputs._version
        _, readers = self._reads.setdefault(place, (inputs, []))

        def backward(gradient: Tensor) -> None:
            rows = gradient.flatten(0, -2).float()
            reached = rows.abs().amax(1) != 0  # leaves out padding, and keeps nan
            self._outputs.setdefault(name, Sum(self._block)).add(rows[reached], float(self.examples) ** 2)
            readers.append((name, reached))

        output.register_hook(backward)
        return output.clone() if first else output

    def end_batch(self) -> None:
        """Add each tensor once for all readers that the gradient reached at the same tokens."""
        for tensor, readers in self._reads.values():
            alike: list[tuple[Tensor, set[str]]] = []
            for name, reached in readers:
                same = (names for at, names in alike if name not in names and torch.equal(reached, at))
                if (names := next(same, None)) is None:
                    alike.append((reached, {name}))
                else:
                    names.add(name)
            for reached, names in alike:
                total = self._inputs.setdefault(frozenset(names), Sum(self._block))
                total.add(tensor.flatten(0, -2)[reached].float())
        self._reads.clear()

    def means(self, examples: int) -> tuple[dict[str, Moment], dict[str, Moment], dict[str, int]]:
        """The moments of inputs and outputs, and the number of tokens, of all layers that were reached.

        Layers that always read the same tensors get the same moment.
        """
        read = {
            name: tuple(each for names, each in self._inputs.items() if name in names and each.tokens)
            for name in self._layers
        }
        tokens = {sums: sum(each.tokens for each in sums) for sums in read.values() if sums}
        # Means of several sums come first, since that of one sum takes its memory.
        means = {sums: _mean(sums, tokens[sums]) for sums in sorted(tokens, key=len, reverse=True)}
        reached = {name: sums for name, sums in read.items() if sums}
        inputs = {name: means[sums] for name, sums in reached.items()}
        outputs = {name: _mean((self._outputs[name],), examples) for name in reached}
        return inputs, outputs, {name: tokens[sums] for name, sums in reached.items()}
