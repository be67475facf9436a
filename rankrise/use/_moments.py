"""Second moments of a layer's inputs and of the gradients at its outputs, and the file that keeps them."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import read_tensors, write_tensors
from rankrise.use._weights import Matrix

FORMAT = "rankrise-moments/3"

DAMPING = 1e-3
"""Added to every eigenvalue of a moment, as a share of their mean."""


@dataclass(frozen=True, eq=False)
class Moment:
    """`E[x x^T]` of the vectors x on one side of a matrix, as diagonal blocks [b, b]."""

    blocks: tuple[Tensor, ...]

    def part(self, start: int, stop: int) -> "Moment":
        """The moment of the coordinates from `start` to `stop`."""
        blocks, first = [], 0
        for block in self.blocks:
            inside = slice(max(start - first, 0), max(stop - first, 0))
            blocks.append(block[inside, inside])
            first += len(block)
        return Moment(tuple(block for block in blocks if len(block)))

    def root(self, damping: float = DAMPING, device: Any = None) -> "Root":
        """The lower triangular L for which `L L^T` is the damped moment."""
        blocks = [block.to(device or block.device).double() for block in self.blocks]
        mean = sum(float(block.diagonal().sum()) for block in blocks) / sum(map(len, blocks))
        added, roots = damping * mean or 1e-24, []
        for block in blocks:
            damped = (block + block.mT) / 2 + added * torch.eye(len(block)).to(block)
            roots.append(torch.linalg.cholesky(damped).float())
        return Root(tuple(roots))


@dataclass(frozen=True, eq=False)
class Root:
    """A block diagonal L in float32, of lower triangular blocks [b, b]."""

    blocks: tuple[Tensor, ...]

    def apply(self, matrix: Tensor) -> Tensor:
        """`L^T @ matrix`."""
        return torch.cat([block.mT @ rows for block, rows in self._parts(matrix)])

    def undo(self, matrix: Tensor) -> Tensor:
        """`L^-T @ matrix`."""
        solve = partial(torch.linalg.solve_triangular, upper=True)
        return torch.cat([solve(block.mT, rows) for block, rows in self._parts(matrix)])

    def _parts(self, matrix: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        parts = matrix.split([len(block) for block in self.blocks])
        return ((block.to(matrix), rows) for block, rows in zip(self.blocks, parts, strict=True))

    @property
    def square(self) -> float:
        """The square of the Frobenius norm: the trace of the moment."""
        return sum(float(block.double().square().sum()) for block in self.blocks)

    @property
    def norm(self) -> float:
        """The largest singular value, by power iteration."""
        squares = []
        for block in map(Tensor.double, self.blocks):
            vector = block.mT @ torch.ones(len(block), 1).to(block)
            for _ in range(50):
                vector = block.mT @ (block @ (vector / torch.linalg.vector_norm(vector)))
            squares.append(float(torch.linalg.vector_norm(vector)))
        return max(squares) ** 0.5


Roots = tuple[Root, Root]
"""The roots of a matrix's C and G."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by module name.

    C is the moment of a layer's inputs, averaged over tokens. G is that of the loss gradients at its outputs,
    summed over the tokens of an example and averaged over examples.
    """

    inputs: dict[str, Moment]
    outputs: dict[str, Moment]
    examples: int
    about: dict[str, Any]
    """A fingerprint of the model, the block length, and what the caller added, such as data and a seed."""
    tokens: dict[str, int]
    """How many tokens each layer was measured on."""

    def to_dict(self) -> dict[str, Any]:
        """How they were measured."""
        return {"examples": self.examples, **self.about}

    def warn_if_few(self) -> None:
        """Warn if more than half of the layers saw fewer tokens than they have inputs.

        The moment of n vectors has rank n at most; beyond it, only the damping weighs a change. For the last
        layer of a classifier this is usual: it sees one token per example.
        """
        widths = {name: max(map(len, moment.blocks)) for name, moment in self.inputs.items()}
        short = [name for name, width in widths.items() if self.tokens[name] < width]
        if 2 * len(short) > len(widths):
            warnings.warn(
                f"Too few examples for moments: {len(short)} of {len(widths)} layers saw fewer tokens than "
                f"they have inputs, such as {short[0]}; use more examples.",
                stacklevel=3,
            )

    def roots(self, matrix: Matrix, device: Any = None) -> Roots:
        """The roots of a matrix's C and G."""
        if matrix.name not in self.inputs:
            raise RankriseError(
                f"There are no moments of {matrix.name}: the loss did not depend on it. Leave it out with "
                "`only`, or leave out the moments."
            )
        outputs = self.outputs[matrix.name].part(matrix.first, matrix.first + matrix.out)
        return self.inputs[matrix.name].root(device=device), outputs.root(device=device)

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file."""
        tensors = {
            f"{side}/{name}/{place}": block.cpu()
            for side, moments in (("inputs", self.inputs), ("outputs", self.outputs))
            for name, moment in moments.items()
            for place, block in enumerate(moment.blocks)
        }
        facts = {"examples": self.examples, "about": self.about, "tokens": self.tokens}
        write_tensors(Path(path), tensors, {"format": FORMAT, "facts": json.dumps(facts)})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Moments":
        """Read a file that `save` wrote."""
        tensors, texts = read_tensors(Path(path), "measure the moments again")
        if texts.get("format") != FORMAT:
            raise RankriseError(f"{str(path)!r} holds no moments: pass a file that Moments.save wrote.")
        facts = json.loads(texts["facts"])
        blocks: dict[str, list[Tensor]] = defaultdict(list)
        for key in sorted(tensors, key=lambda key: int(key.rpartition("/")[2])):
            blocks[key.rpartition("/")[0]].append(tensors[key])
        inputs, outputs = (
            {name: Moment(tuple(blocks[f"{side}/{name}"])) for name in facts["tokens"]}
            for side in ("inputs", "outputs")
        )
        loaded = cls(inputs, outputs, **facts)
        loaded.warn_if_few()
        return loaded
