"""`use.moments`: what each linear layer's inputs and the loss gradients at its outputs look like."""

import json
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.foundations.reading import is_too_deep
from rankrise.record.tensors import CHECKSUM, read_tensors, write_tensors
from rankrise.use._fingerprint import fingerprint
from rankrise.use._gathered import Gathered
from rankrise.use._moment import DAMPING, Moment, Root
from rankrise.use._weights import Matrix, Source, linear_layers, open_source
from rankrise.watch._heads import unwrap

FORMAT = "rankrise-moments/2"
EARLIER = "rankrise-moments/1"
"""Of versions that wrote no checksum, at first."""
AGAIN = "measure them again"

log = logging.getLogger("rankrise")

BLOCK = 4096
"""Sides up to this long have a whole moment; longer ones one of blocks up to this long."""


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by module name: C of the inputs, the mean over tokens, and G of the gradients at the
    outputs, summed over the tokens of an example, the mean over examples.

    Layers that read the same inputs, as queries, keys and values do, have one and the same C.
    """

    inputs: dict[str, Moment]
    outputs: dict[str, Moment]
    examples: int
    about: dict[str, Any] = field(default_factory=dict)
    """What they were measured on: a fingerprint of the model, and what the caller said, such as data and a
    seed. Empty in files of earlier versions."""
    tokens: dict[str, int] = field(default_factory=dict)
    """At how many tokens each layer was measured, by module name. Empty in files of earlier versions."""

    def to_dict(self) -> dict[str, Any]:
        """What is needed to measure them again, and whether that is enough, as `--json` prints it."""
        fewest = min(self.tokens.values(), default=None)
        return {"examples": self.examples, "fewest_tokens": fewest, "too_few": self.too_few, **self.about}

    @property
    def too_few(self) -> str | None:
        """A sentence where more than half of the layers saw fewer tokens than they have inputs; else None.

        The moment of n vectors has rank n at most. One of fewer than its width knows nothing of the
        directions that are left, and the damping alone weighs a change along them. Of a classifier's last
        layer this is usual, since that is read at one token per example; of most layers it is too little.
        """
        widths = {name: max(map(len, moment.whole), default=0) for name, moment in self.inputs.items()}
        short = [name for name, count in self.tokens.items() if count < widths.get(name, 0)]
        if 2 * len(short) <= len(self.tokens):
            return None
        worst = min(short, key=lambda name: self.tokens[name] / widths[name])
        return (
            f"The moments say little: {len(short)} of the {len(self.tokens)} layers saw fewer tokens than "
            f"they have inputs ({worst}: {counted(self.tokens[worst], 'token')} of "
            f"{counted(self.examples, 'example')} for {widths[worst]} inputs); measure them on more examples."
        )

    def refuse_other_model(self, model: Source) -> None:
        """Refuse a model that they were not measured on, where that is known."""
        theirs = self.about.get("model")
        if theirs is not None and theirs != fingerprint(open_source(model)):
            raise RankriseError(
                "The moments were measured on a model with other weights: measure them on this one, into "
                "another file."
            )

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
                "this layer as a module of its own. Leave the moments out, or the layer."
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
        """Write them to one safetensors file; a moment that several layers have is there once."""
        firsts: dict[int, str] = {}
        same = {
            name: first
            for name, moment in self.inputs.items()
            if (first := firsts.setdefault(id(moment), name)) != name
        }
        tensors = {
            f"{side}/{name}/{place}": block.detach().cpu().contiguous()
            for side, moments in (("inputs", self.inputs), ("outputs", self.outputs))
            for name, moment in moments.items()
            if side == "outputs" or name not in same
            for place, block in enumerate(moment.blocks)
        }
        texts = {
            "format": FORMAT,
            "examples": str(self.examples),
            "same_inputs": json.dumps(same),
            "about": json.dumps(self.about),
            "tokens": json.dumps(self.tokens),
        }
        write_tensors(Path(path), tensors, texts)
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> "Moments":
        """Read them back."""
        tensors, texts = read_tensors(Path(path), AGAIN)
        if texts.get("format") not in (FORMAT, EARLIER):
            raise RankriseError(f"{str(path)!r} holds no moments: pass a file that Moments.save wrote.")
        if CHECKSUM not in texts:
            if texts["format"] == FORMAT:
                raise RankriseError(f"{path} is damaged (it has no checksum): {AGAIN}.")
            log.warning("%s is of an earlier version, without a checksum: damage is not noticed.", path)
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
        for name, first in _object(texts, "same_inputs", path).items():
            if not isinstance(first, str) or first not in inputs:
                raise RankriseError(f"{path} is damaged (it has no inputs of {first}): {AGAIN}.")
            inputs[name] = inputs[first]
        if not re.fullmatch(r"\d{1,18}", texts.get("examples", "")):
            raise RankriseError(f"{path} is damaged (it does not say of how many examples): {AGAIN}.")
        tokens = _object(texts, "tokens", path)
        if not all(type(count) is int and count > 0 for count in tokens.values()):
            raise RankriseError(f"{path} is damaged (tokens are not numbers): {AGAIN}.")
        loaded = cls(inputs, outputs, int(texts["examples"]), _object(texts, "about", path), tokens)
        _warn(loaded)
        return loaded


@typed
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
    """Second moments of every linear layer's inputs, and of the loss gradients at its outputs.

    `loss(model, batch)` is the mean loss of a batch. `use.sampled` is one whose labels are drawn from the
    model's own predictions: with it, the gradients' moment is that of the true Fisher matrix, which a cut of
    a trained model should be weighted by. The moments stay on the model's device: 4 bytes for each entry of
    the square of each side, in blocks where a side is longer than `block`, and one C for layers that read the
    same tensor. Llama 2 7B needs 35 GB so, and 9 GB with `block=1024`. What you say in `about`, such as the
    data and a seed, is kept with them and in their file, beside a fingerprint of the model.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    >>> x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> found = moments(model, [x], lambda model, batch: model(batch).mean())
    >>> found.inputs["0"].blocks[0], found.outputs["1"].blocks[0]
    (tensor([[ 5.,  7.],
            [ 7., 10.]]), tensor([[1.]]))
    """
    if block < 1:
        raise RankriseError(f"block is {block}: pass a whole number of 1 or more.")
    network = unwrap(model)
    layers = {matrix.name: matrix for matrix in linear_layers(network) if only(matrix.name)}
    gathered = Gathered(layers, block)
    with gathered.listening(network):
        examples = _differentiated(model, batches, loss, gathered, progress)
    if not examples:
        raise RankriseError("There was no batch to measure moments on: give some.")
    tokens = gathered.tokens
    if not tokens:
        raise RankriseError(
            "No linear layer took part in the loss: measure moments on the plain model of its library."
        )
    inputs, outputs = gathered.means(examples)
    about = {"model": fingerprint(open_source(network)), "block": block, **(about or {})}
    found = Moments(inputs, outputs, examples, about, tokens)
    _warn(found, frames=4)  # past `typed`
    return found


def _differentiated(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Callable[[Any, Any], Tensor],
    gathered: Gathered,
    progress: Callable[[int], None] | None,
) -> int:
    """Differentiate the loss of every batch, while sums are gathered; the number of examples."""
    examples = 0
    for batch in batches:
        count = _examples(batch)
        gathered.begin(count)
        with torch.enable_grad():
            value = loss(model, batch)
            if not torch.isfinite(value):
                raise RankriseError(
                    f"The loss of a batch is {float(value.detach())}: check the data and the model."
                )
            if value.requires_grad:
                value.backward()
        gathered.end()
        examples += count
        if progress is not None:
            progress(examples)
    return examples


def _warn(found: Moments, frames: int = 3) -> None:
    """Warn the caller of `moments` or `Moments.load`, so many frames above, of too few tokens."""
    if found.too_few is not None:
        warnings.warn(found.too_few, stacklevel=frames)


def _object(texts: Mapping[str, str], name: str, path: str | Path) -> dict[str, Any]:
    """One of the texts that is a JSON object; an empty one in files from before it was written."""
    try:
        found = json.loads(texts.get(name, "{}"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or is_too_deep(found):
        raise RankriseError(f"{path} is damaged ({name} is not an object): {AGAIN}.")
    return found


def _examples(batch: Any) -> int:
    """How many examples a batch has: the length of its first tensor."""
    if isinstance(batch, Tensor):
        return len(batch) if batch.ndim else 0
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    for part in parts:
        found = _examples(part)
        if found:
            return found
    return 0
