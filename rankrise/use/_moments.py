"""`use.moments`: what each linear layer's inputs and the loss gradients at its outputs look like."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.record.tensors import read_tensors, write_tensors
from rankrise.use._moment import DAMPING, Moment, Root
from rankrise.use._weights import Matrix, linear_layers
from rankrise.watch._heads import unwrap

FORMAT = "rankrise-moments/1"
AGAIN = "measure them again"

BLOCK = 4096
"""Sides up to this long have a whole moment; longer ones one of blocks up to this long."""

DIAGONAL_ABOVE = 32768
"""Of sides longer than this, such as a vocabulary, only the diagonal is kept."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by module name: C of the inputs, the mean over tokens, and G of the gradients at the
    outputs, summed over the tokens of an example, the mean over examples."""

    inputs: dict[str, Moment]
    outputs: dict[str, Moment]
    examples: int

    def roots(self, matrix: Matrix, damping: float = DAMPING, device: Any = None) -> tuple[Root, Root]:
        """The roots of a matrix's C and G."""
        return self.roots_of(matrix, 0, matrix.out, damping, device)

    def roots_of(
        self, matrix: Matrix, start: int, stop: int, damping: float = DAMPING, device: Any = None
    ) -> tuple[Root, Root]:
        """The roots for some of its outputs alone."""
        found = self.inputs.get(matrix.name), self.outputs.get(matrix.name)
        if found[0] is None or found[1] is None:
            raise RankriseError(
                f"There are no moments of {matrix.name}: the model that they were measured on did not use "
                "this layer as a module of its own."
            )
        for moment, size, side in ((found[0], matrix.into, "inputs"), (found[1], matrix.out, "outputs")):
            if moment.size != size:
                raise RankriseError(
                    f"The moments of {matrix.name} are of {moment.size} {side}, and it has {size}: measure "
                    "them on this model."
                )
        first, second = (
            Moment(tuple(block.to(device or block.device) for block in moment.blocks)).root(damping)
            for moment in (found[0], found[1].part(start, stop))
        )
        return first, second

    def save(self, path: str | Path) -> Path:
        """Write them to one safetensors file."""
        tensors = {
            f"{side}/{name}/{place}": block.detach().cpu().contiguous()
            for side, moments in (("inputs", self.inputs), ("outputs", self.outputs))
            for name, moment in moments.items()
            for place, block in enumerate(moment.blocks)
        }
        write_tensors(Path(path), tensors, {"format": FORMAT, "examples": str(self.examples)})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Moments":
        """Read them back."""
        tensors, about = read_tensors(Path(path), AGAIN)
        if about.get("format") != FORMAT:
            raise RankriseError(f"{str(path)!r} holds no moments: pass a file that Moments.save wrote.")
        blocks: dict[str, dict[str, dict[int, Tensor]]] = {"inputs": {}, "outputs": {}}
        for key, block in tensors.items():
            found = re.fullmatch(r"(inputs|outputs)/(.+)/(\d{1,9})", key)
            square = block.ndim == 1 or (block.ndim == 2 and block.shape[0] == block.shape[1])
            if found is None or not square or not len(block) or block.dtype != torch.float32:
                what = f"{key} is {block.dtype} {list(block.shape)}"
                raise RankriseError(f"{path} is damaged ({what}): {AGAIN}.")
            blocks[found[1]].setdefault(found[2], {})[int(found[3])] = block
        inputs, outputs = (
            {name: Moment(tuple(parts[place] for place in sorted(parts))) for name, parts in side.items()}
            for side in blocks.values()
        )
        if not re.fullmatch(r"\d{1,18}", about.get("examples", "")):
            raise RankriseError(f"{path} is damaged (it does not say of how many examples): {AGAIN}.")
        return cls(inputs, outputs, int(about["examples"]))


def moments(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    *,
    block: int = BLOCK,
    only: Callable[[str], bool] = lambda name: True,
    progress: Callable[[int], None] = lambda examples: None,
) -> Moments:
    """Second moments of every linear layer's inputs, and of the loss gradients at its outputs.

    `loss(model, batch)` is the mean loss of a batch. `use.sampled` is one whose labels are drawn from the
    model's own predictions: with it, the gradients' moment is that of the true Fisher matrix, which a cut of
    a trained model should be weighted by. The moments stay on the model's device, 4 bytes for each entry of
    the square of each side, in blocks where a side is longer than `block`.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> found = moments(model, [x], lambda model, batch: model(batch).mean())
    >>> found.inputs["0"].blocks[0], found.outputs["1"].blocks[0]
    (tensor([[ 5.,  7.],
            [ 7., 10.]]), tensor([[1.]]))
    """
    network = unwrap(model)
    sums = {
        matrix.name: _Sums(_Sum(matrix.into, block), _Sum(matrix.out, block))
        for matrix in linear_layers(network)
        if only(matrix.name)
    }
    examples = 0
    with _listening(network, sums) as count:
        for batch in batches:
            count[0] = _examples(batch)
            with torch.enable_grad():
                value = loss(model, batch)
                if not torch.isfinite(value):
                    raise RankriseError(
                        f"The loss of a batch is {float(value.detach())}: check the data and the model."
                    )
                if value.requires_grad:
                    value.backward()
            examples += count[0]
            progress(examples)
    if not examples:
        raise RankriseError("There was no batch to measure moments on: give some.")
    seen = {name: both for name, both in sums.items() if both.tokens}
    if not seen:
        raise RankriseError(
            "No linear layer took part in the loss: measure moments on the plain model of its library."
        )
    return Moments(
        {
            name: Moment(tuple(part / both.tokens for part in both.inputs.blocks))
            for name, both in seen.items()
        },
        {name: Moment(tuple(part / examples for part in both.outputs.blocks)) for name, both in seen.items()},
        examples,
    )


class _Sum:
    """A sum of `x x^T`, in blocks."""

    def __init__(self, size: int, block: int) -> None:
        self.diagonal = size > DIAGONAL_ABOVE
        parts = 1 if self.diagonal else -(-size // block)
        self.sizes = [size // parts + (place < size % parts) for place in range(parts)]
        self.blocks: list[Tensor] = []

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


@dataclass
class _Sums:
    inputs: _Sum
    outputs: _Sum
    tokens: int = 0


@contextmanager
def _listening(model: nn.Module, sums: Mapping[str, _Sums]) -> Iterator[list[int]]:
    """Every layer's sums grow in each backward pass; the list holds the number of examples in the batch.

    No weight gets a gradient meanwhile, which saves their memory and time.
    """
    count = [0]
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = model.training
    modules = dict(model.named_modules())
    handles = [
        modules[name].register_forward_hook(partial(_forward, both, count), with_kwargs=True)
        for name, both in sums.items()
    ]
    model.eval()
    model.requires_grad_(False)
    try:
        yield count
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
        model.train(training)


def _forward(
    sums: _Sums, count: list[int], _: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor
) -> Tensor:
    inputs = (given[0] if given else next(iter(named.values()))).detach()
    first = not output.requires_grad
    if first:
        output = output.detach().requires_grad_()

    def backward(gradient: Tensor) -> None:
        rows = gradient.flatten(0, -2).float()
        reached = rows.abs().amax(1) > 0  # not padding, and not what nothing looks at
        rows = rows[reached]
        sums.inputs.add(inputs.flatten(0, -2)[reached].float())
        sums.outputs.add(rows, float(count[0]) ** 2)
        sums.tokens += len(rows)

    output.register_hook(backward)
    return output.clone() if first else output


def _examples(batch: Any) -> int:
    """How many examples a batch has: the length of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch)
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        found = _examples(part)
        if found:
            return found
    return 0
