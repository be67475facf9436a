"""Sums of `x x^T` on both sides of every layer, gathered while losses are differentiated.

Layers that read one tensor, as queries, keys and values do, share the sum of their inputs for as long as the
gradient reaches them at the same tokens.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.use._moment import Moment
from rankrise.use._weights import Matrix

DIAGONAL_ABOVE = 32768
"""Of sides longer than this, such as a vocabulary, only the diagonal is kept."""


class Sum:
    """A sum of `x x^T` over tokens, in blocks."""

    def __init__(self, size: int, block: int) -> None:
        self.diagonal = size > DIAGONAL_ABOVE
        parts = 1 if self.diagonal else -(-size // block)
        self.sizes = [size // parts + (place < size % parts) for place in range(parts)]
        self.blocks: list[Tensor] = []
        self.tokens = 0
        self.owners: set[str] = set()
        """The layers whose sum it is."""

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

    def copy_for(self, owners: set[str]) -> "Sum":
        """A copy for some of its owners, which leave this one."""
        made = Sum(sum(self.sizes), max(self.sizes))
        made.sizes, made.blocks = self.sizes, [block.clone() for block in self.blocks]
        made.tokens, made.owners = self.tokens, owners
        self.owners -= owners
        return made


@dataclass
class _Read:
    """A tensor that layers read in this batch, and at which of its tokens the gradient reached each."""

    tensor: Tensor
    readers: int = 0
    reached: list[tuple[str, Tensor]] = field(default_factory=list)


class Gathered:
    """The sums of every layer's inputs and of the gradients at its outputs, by module name."""

    def __init__(self, layers: Mapping[str, Matrix], block: int) -> None:
        self.inputs: dict[str, Sum] = {}
        self.outputs: dict[str, Sum] = {}
        self._layers, self._block = layers, block
        self._reads: dict[Any, _Read] = {}
        self._examples = 0

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Sums grow in each backward pass, between `begin` and `end` of its batch.

        No weight gets a gradient meanwhile, which saves their memory and time.
        """
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        training = model.training
        modules = dict(model.named_modules())
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

    def begin(self, examples: int) -> None:
        """A batch of so many examples comes next."""
        self._examples = examples

    def end(self) -> None:
        """Its backward pass is done: what of its layers the gradient did not reach is not waited for."""
        for read in self._reads.values():
            self._add(read)
        self._reads.clear()

    @property
    def tokens(self) -> dict[str, int]:
        """At how many tokens the inputs of each layer were seen, by module name; without those never used."""
        return {name: self.inputs[name].tokens for name in self._layers if self._used(name)}

    def means(self, examples: int) -> tuple[dict[str, Moment], dict[str, Moment]]:
        """The sums of the inputs over their tokens, those that layers share once, and of the outputs over the
        examples; both take the sums' memory."""
        means: dict[int, Moment] = {}
        for each in self.inputs.values():
            if each.tokens and id(each) not in means:
                means[id(each)] = Moment(tuple(block.div_(each.tokens) for block in each.blocks))
        used = [name for name in self._layers if self._used(name)]
        outputs = {
            name: Moment(tuple(block.div_(examples) for block in self.outputs[name].blocks)) for name in used
        }
        return {name: means[id(self.inputs[name])] for name in used}, outputs

    def _used(self, name: str) -> bool:
        return name in self.inputs and self.inputs[name].tokens > 0

    def _forward(
        self, name: str, _: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        inputs = (given[0] if given else next(iter(named.values()))).detach()
        first = not output.requires_grad
        if first:
            output = output.detach().requires_grad_()
        # It is held until its readers are done, so that no other tensor of this batch is at its place.
        place = inputs.data_ptr(), inputs.shape, inputs.stride(), inputs._version
        read = self._reads.setdefault(place, _Read(inputs))
        read.readers += 1

        def backward(gradient: Tensor) -> None:
            rows = gradient.flatten(0, -2).float()
            reached = rows.abs().amax(1) != 0  # not padding, nor what nothing looks at; what is undefined is
            outputs = self.outputs.setdefault(name, Sum(self._layers[name].out, self._block))
            outputs.add(rows[reached], float(self._examples) ** 2)
            read.reached.append((name, reached))
            if len(read.reached) == read.readers:
                self._add(read)

        output.register_hook(backward)
        return output.clone() if first else output

    def _add(self, read: _Read) -> None:
        """Add a tensor to the sums of its readers: once for all that the gradient reached at equal tokens."""
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
            rows = read.tensor.flatten(0, -2)[reached].float()
            for each in self._sums_of(names):
                each.add(rows)

    def _sums_of(self, names: set[str]) -> list[Sum]:
        """The sums of the inputs of these layers alone: one that others have too is copied for them."""
        new = {name for name in names if name not in self.inputs}
        if new:
            made = Sum(self._layers[min(new)].into, self._block)
            made.owners = new
            self.inputs |= dict.fromkeys(new, made)
        for shared in {id(each): each for each in map(self.inputs.__getitem__, names)}.values():
            ours = shared.owners & names
            if ours != shared.owners:
                self.inputs |= dict.fromkeys(ours, shared.copy_for(ours))
        return list({id(each): each for each in map(self.inputs.__getitem__, names)}.values())
