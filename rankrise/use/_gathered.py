"""`use.moments`: sums of `x x^T` on both sides of every layer, gathered while losses are differentiated."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._moments import Moment, Moments
from rankrise.use._weights import Matrix, fingerprint, is_causal, linear_layers
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

    `loss(model, batch)` is the mean loss of a batch. `use.sampled` draws labels from the model's own
    predictions, which gives the true Fisher matrix; weight the cut of a trained model by that. Moments stay
    on the model's device and take 4 bytes per entry: 35 GB for Llama 2 7B, or 9 GB with `block=1024`. What
    you pass as `about` is kept with them and in their file.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> found = moments(model, [x], lambda model, batch: model(batch).mean())
    >>> found.inputs["0"].blocks[0], found.outputs["1"].blocks[0]
    (tensor([[ 5.,  7.],
            [ 7., 10.]]), tensor([[1.]]))
    """
    if block < 1:
        raise RankriseError(f"block is {block}: pass 1 or more.")
    network = unwrap(model)
    gathered = Gathered([matrix for matrix in linear_layers(network) if only(matrix.name)], block)
    examples = 0
    with gathered.listening(network):
        for batch in batches:
            gathered.examples = _count(batch)
            with torch.enable_grad():
                value = loss(model, batch)
                if not torch.isfinite(value):
                    raise RankriseError(
                        f"The loss of a batch is {float(value.detach())}: check the data and the model."
                    )
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
    told = {"model": fingerprint(network), "block": block, **(about or {})}
    found = Moments(inputs, outputs, examples, told, tokens)
    found.warn()
    return found


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
    labels = batch.get("labels")
    counted = torch.ones(logits.shape[:-1], dtype=torch.bool, device=logits.device)
    if labels is not None:
        counted = labels != IGNORED
    if logits.ndim == 3:
        if "attention_mask" in batch:
            counted = counted & batch["attention_mask"].bool()
        if is_causal(model):
            counted = nn.functional.pad(counted[:, 1:], (0, 1), value=False)  # of the token to be predicted
    return logits.float(), counted


def _count(batch: Any) -> int:
    """How many examples a batch has: the length of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((count for count in map(_count, parts) if count), 0)


class Sum:
    """A sum of `x x^T` over tokens, in blocks."""

    def __init__(self, size: int, block: int) -> None:
        self.diagonal = size > DIAGONAL_ABOVE
        parts = 1 if self.diagonal else -(-size // block)
        self.sizes = [size // parts + (place < size % parts) for place in range(parts)]
        self.blocks: list[Tensor] = []
        self.tokens = 0

    def add(self, rows: Tensor, factor: float = 1.0) -> None:
        """Add `factor * rows^T rows`. [tokens, size]"""
        if not self.blocks:
            shapes = [(size,) if self.diagonal else (size, size) for size in self.sizes]
            self.blocks = [torch.zeros(shape, device=rows.device) for shape in shapes]
        for total, part in zip(self.blocks, rows.split(self.sizes, dim=1), strict=True):
            if self.diagonal:
                total.add_(part.square().sum(0), alpha=factor)
            else:
                total.addmm_(part.mT, part, alpha=factor)
        self.tokens += len(rows)


def mean(sums: Sequence[Sum], count: int) -> Moment:
    """The mean of one sum, in its memory, or of several together."""
    blocks = zip(*(each.blocks for each in sums), strict=True)
    return Moment(tuple(sum(parts[1:], parts[0]).div_(count) for parts in blocks))


@dataclass
class _Read:
    """A tensor that layers read in this batch, and the tokens where each got a gradient."""

    tensor: Tensor
    readers: int = 0
    reached: list[tuple[str, Tensor]] = field(default_factory=list)


class Gathered:
    """The sums of all layers."""

    def __init__(self, layers: Iterable[Matrix], block: int) -> None:
        self.examples = 0
        """In the current batch."""
        self._layers, self._block = {matrix.name: matrix for matrix in layers}, block
        self._inputs: dict[frozenset[str], Sum] = {}
        """Of tensors that just these layers read, each with a gradient at the same tokens."""
        self._outputs: dict[str, Sum] = {}
        self._reads: dict[Any, _Read] = {}

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Add to the sums in every backward pass; no weight gets a gradient meanwhile."""
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        training, modules = model.training, dict(model.named_modules())
        handles = [
            modules[name].register_forward_hook(partial(self._forward, name), with_kwargs=True)
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

    def end_batch(self) -> None:
        """Add the tensors that still wait for a layer which the gradient did not reach."""
        for read in self._reads.values():
            self._add(read)
        self._reads.clear()

    def means(self, examples: int) -> tuple[dict[str, Moment], dict[str, Moment], dict[str, int]]:
        """The moments of inputs and of outputs, and the number of tokens, of all layers that were reached.

        Layers that always read the same tensors get the same moment.
        """
        found = {
            name: tuple(each for readers, each in self._inputs.items() if name in readers and each.tokens)
            for name in self._layers
        }
        found = {name: sums for name, sums in found.items() if sums}
        tokens = {sums: sum(each.tokens for each in sums) for sums in found.values()}
        means = {sums: mean(sums, tokens[sums]) for sums in sorted(tokens, key=len, reverse=True)}
        outputs = {name: mean([self._outputs[name]], examples) for name in found}
        inputs = {name: means[sums] for name, sums in found.items()}
        return inputs, outputs, {name: tokens[sums] for name, sums in found.items()}

    def _forward(
        self, name: str, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        inputs = (given[0] if given else next(iter(named.values()))).detach()
        first = not output.requires_grad
        if first:
            output = output.detach().requires_grad_()
        # The tensor is kept until its readers are done, so no other can take its address.
        place = inputs.data_ptr(), inputs.shape, inputs.stride(), inputs._version
        read = self._reads.setdefault(place, _Read(inputs))
        read.readers += 1

        def backward(gradient: Tensor) -> None:
            rows = gradient.flatten(0, -2).float()
            reached = rows.abs().amax(1) != 0  # leaves out padding, and keeps nan
            outputs = self._outputs.setdefault(name, Sum(self._layers[name].out, self._block))
            outputs.add(rows[reached], float(self.examples) ** 2)
            read.reached.append((name, reached))
            if len(read.reached) == read.readers:
                self._add(read)

        output.register_hook(backward)
        return output.clone() if first else output

    def _add(self, read: _Read) -> None:
        """Add a tensor once for all readers that the gradient reached at the same tokens."""
        alike: list[tuple[Tensor, set[str]]] = []
        for name, reached in read.reached:
            for other, names in alike:
                if name not in names and torch.equal(reached, other):
                    names.add(name)
                    break
            else:
                alike.append((reached, {name}))
        read.reached.clear()
        for reached, names in alike:
            into = self._layers[min(names)].into
            self._inputs.setdefault(frozenset(names), Sum(into, self._block)).add(
                read.tensor.flatten(0, -2)[reached].float()
            )
