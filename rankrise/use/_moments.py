"""Second moments of a layer's inputs and of the gradients at its outputs, and the file that keeps them."""

import json
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import read_tensors, write_tensors
from rankrise.use._weights import Matrix

FORMAT = "rankrise-moments/2"

DAMPING = 1e-3
"""Added to every eigenvalue of a moment, as a share of their mean."""


@dataclass(frozen=True, eq=False)
class Moment:
    """`E[x x^T]` of the vectors x on one side of a matrix, as diagonal blocks.

    There is one block [d, d], or several where the side is long, or one vector [d] with the diagonal alone
    where it is as long as a vocabulary.

    >>> Moment((torch.eye(2), 3 * torch.eye(1))).size
    3
    """

    blocks: tuple[Tensor, ...]

    @property
    def size(self) -> int:
        return sum(len(block) for block in self.blocks)

    def part(self, start: int, stop: int) -> "Moment":
        """The moment of the coordinates from `start` to `stop`."""
        blocks, first = [], 0
        for block in self.blocks:
            inside = slice(max(start - first, 0), max(stop - first, 0))
            cut = block[inside] if block.ndim == 1 else block[inside, inside]
            blocks += [cut] if len(cut) else []
            first += len(block)
        return Moment(tuple(blocks))

    def root(self, damping: float = DAMPING, device: Any = None) -> "Root":
        """The lower triangular L for which `L L^T` is the damped moment."""
        blocks = tuple(block.to(device or block.device).double() for block in self.blocks)
        diagonals = (block if block.ndim == 1 else block.diagonal() for block in blocks)
        mean = sum(float(diagonal.sum()) for diagonal in diagonals) / self.size
        if not 0 <= mean < float("inf"):
            raise RankriseError(f"A moment has the mean eigenvalue {mean}: measure it on finite losses.")
        if mean == 0:  # nothing depends on this side
            return Root(tuple(torch.full((len(block),), 1e-12) for block in blocks))
        roots, added = [], damping * mean
        for block in blocks:
            if block.ndim == 1:
                roots.append((block + added).sqrt().float())
                continue
            root, failed = torch.linalg.cholesky_ex(
                (block + block.mT) / 2 + added * torch.eye(len(block)).to(block)
            )
            if failed:
                raise RankriseError("A moment has negative eigenvalues: measure it again with use.moments.")
            roots.append(root.float())
        return Root(tuple(roots))


@dataclass(frozen=True, eq=False)
class Root:
    """A block diagonal L in float32: each block is lower triangular [b, b], or [b] where it is diagonal."""

    blocks: tuple[Tensor, ...]

    def apply(self, matrix: Tensor) -> Tensor:
        """`L^T @ matrix`."""
        return torch.cat(
            [
                block[:, None] * rows if block.ndim == 1 else block.mT @ rows
                for block, rows in self._parts(matrix)
            ]
        )

    def undo(self, matrix: Tensor) -> Tensor:
        """`L^-T @ matrix`."""
        solve = partial(torch.linalg.solve_triangular, upper=True)
        return torch.cat(
            [
                rows / block[:, None] if block.ndim == 1 else solve(block.mT, rows)
                for block, rows in self._parts(matrix)
            ]
        )

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
        found = []
        for block in (block.double() for block in self.blocks):
            if block.ndim == 1:
                found.append(float(block.max()))
                continue
            vector = block.mT @ torch.ones(len(block), 1).to(block)
            for _ in range(50):
                vector = block.mT @ (block @ (vector / torch.linalg.vector_norm(vector)))
            found.append(float(torch.linalg.vector_norm(vector)) ** 0.5)
        return max(found)


Roots = tuple[Root, Root]
"""The roots of a matrix's C and G."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by module name.

    C is the moment of a layer's inputs, averaged over tokens. G is that of the loss gradients at its outputs,
    summed over the tokens of an example and averaged over examples. Layers that read the same tensor, such as
    queries, keys and values, share one C.
    """

    inputs: dict[str, Moment]
    outputs: dict[str, Moment]
    examples: int
    about: dict[str, Any] = field(default_factory=dict)
    """A fingerprint of the model, the block length, and what the caller added, such as data and a seed."""
    tokens: dict[str, int] = field(default_factory=dict)
    """How many tokens each layer was measured on."""

    def to_dict(self) -> dict[str, Any]:
        """How they were measured, and whether that is enough, as `--json` prints it."""
        fewest = min(self.tokens.values(), default=None)
        return {"examples": self.examples, "fewest_tokens": fewest, "too_few": self.too_few, **self.about}

    @property
    def too_few(self) -> str | None:
        """A warning if more than half of the layers saw fewer tokens than they have inputs.

        The moment of n vectors has rank n at most; beyond it, only the damping weighs a change. For the last
        layer of a classifier this is usual: it sees one token per example.
        """
        widths = {
            name: max((len(block) for block in moment.blocks if block.ndim == 2), default=0)
            for name, moment in self.inputs.items()
        }
        short = [name for name, count in self.tokens.items() if count < widths.get(name, 0)]
        if 2 * len(short) <= len(self.tokens):
            return None
        worst = min(short, key=lambda name: self.tokens[name] / widths[name])
        return (
            f"Too few examples for moments: {len(short)} of {len(self.tokens)} layers saw fewer tokens than "
            f"they have inputs ({worst} saw {self.tokens[worst]} and has {widths[worst]}); use more examples."
        )

    def roots(self, matrix: Matrix, damping: float = DAMPING, device: Any = None) -> Roots:
        """The roots of a matrix's C and G."""
        inputs, outputs = self.inputs.get(matrix.name), self.outputs.get(matrix.name)
        if inputs is None or outputs is None:
            raise RankriseError(
                f"There are no moments of {matrix.name}: the loss did not depend on it. Leave it out with "
                "`only`, or leave out the moments."
            )
        part = outputs.part(matrix.first, matrix.first + matrix.out)
        if (inputs.size, part.size) != (matrix.into, matrix.out):
            raise RankriseError(
                f"The moments of {matrix.name} are of {inputs.size} inputs and {outputs.size} outputs, and "
                f"it has {matrix.into} and {matrix.out}: measure them on this model."
            )
        return inputs.root(damping, device), part.root(damping, device)

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file; a shared moment is written once."""
        firsts = {id(moment): name for name, moment in reversed(self.inputs.items())}
        own = {name: self.inputs[name] for name in firsts.values()}
        same = {name: firsts[id(moment)] for name, moment in self.inputs.items() if name not in own}
        tensors = {
            f"{side}/{name}/{place}": block.cpu()
            for side, moments in (("inputs", own), ("outputs", self.outputs))
            for name, moment in moments.items()
            for place, block in enumerate(moment.blocks)
        }
        facts = {"examples": self.examples, "same_inputs": same, "about": self.about, "tokens": self.tokens}
        texts = {name: json.dumps(value) for name, value in facts.items()}
        write_tensors(Path(path), tensors, {"format": FORMAT, **texts})
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Moments":
        """Read a file that `save` wrote."""
        tensors, texts = read_tensors(Path(path), "measure the moments again")
        if texts.get("format") != FORMAT:
            raise RankriseError(f"{str(path)!r} holds no moments: pass a file that Moments.save wrote.")
        blocks = {side: defaultdict[str, list[Tensor]](list) for side in ("inputs", "outputs")}
        for key in sorted(tensors, key=lambda key: int(key.rpartition("/")[2])):
            side, _, rest = key.partition("/")
            blocks[side][rest.rpartition("/")[0]].append(tensors[key])
        inputs, outputs = (
            {name: Moment(tuple(parts)) for name, parts in side.items()} for side in blocks.values()
        )
        examples, same, about, tokens = (
            json.loads(texts[name]) for name in ("examples", "same_inputs", "about", "tokens")
        )
        inputs |= {name: inputs[first] for name, first in same.items()}
        loaded = cls(inputs, outputs, examples, about, tokens)
        if loaded.too_few:
            warnings.warn(loaded.too_few, stacklevel=2)
        return loaded
