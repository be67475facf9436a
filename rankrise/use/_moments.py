"""Second moments of a layer's inputs and of the loss gradients at its outputs: measured, rooted and kept."""

import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import read_tensors, write_tensors
from rankrise.use._weights import Matrix, fingerprint, is_causal, linear_layers
from rankrise.watch._heads import unwrap

FORMAT = "rankrise-moments/3"
BLOCK = 4096  # a longer side has its moment in blocks up to this long
DAMPING = 1e-3  # added to every eigenvalue of a moment, as a share of their mean
IGNORED = -100  # the label that transformers leaves out of the loss


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

    def root(self, device: Any = None) -> "Root":
        """The lower triangular L for which `L L^T` is the damped moment."""
        blocks = [block.to(device or block.device).double() for block in self.blocks]
        mean = sum(float(block.diagonal().sum()) for block in blocks) / sum(map(len, blocks))
        added, roots = DAMPING * mean or 1e-24, []
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
        solve = torch.linalg.solve_triangular
        return torch.cat([solve(block.mT, rows, upper=True) for block, rows in self._parts(matrix)])

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


Roots = tuple[Root, Root]  # of a matrix's C and G


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by module name.

    C is the moment of a layer's inputs, averaged over the tokens that the loss reaches. G is that of the loss
    gradients at its outputs, summed over the tokens of an example and averaged over examples.
    """

    inputs: dict[str, Moment]
    outputs: dict[str, Moment]
    examples: int
    about: dict[str, Any]  # a fingerprint of the model, the block length, and what the caller added
    tokens: dict[str, int]  # how many each layer was measured on

    def to_dict(self) -> dict[str, Any]:
        """How they were measured."""
        return {"examples": self.examples, **self.about}

    def warn_if_few(self) -> None:
        """Warn if more than half of the layers saw fewer tokens than they have inputs."""
        # The moment of n vectors has rank n at most; beyond it, only the damping weighs a change.
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
            raise RankriseError(f"There are no moments of {matrix.name}: leave it out with `only`.")
        outputs = self.outputs[matrix.name].part(matrix.first, matrix.first + matrix.out)
        return self.inputs[matrix.name].root(device), outputs.root(device)

    def save(self, path: str | Path) -> Path:
        """Write one safetensors file."""
        tensors = {
            f"{side}/{name}/{place}": block.cpu()
            for side in ("inputs", "outputs")
            for name, moment in getattr(self, side).items()
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
        facts, blocks = json.loads(texts["facts"]), defaultdict[str, list[Tensor]](list)
        for key in sorted(tensors, key=lambda key: int(key.rpartition("/")[2])):
            blocks[key.rpartition("/")[0]].append(tensors[key])
        inputs, outputs = (
            {name: Moment(tuple(blocks[f"{side}/{name}"])) for name in facts["tokens"]}
            for side in ("inputs", "outputs")
        )
        loaded = cls(inputs, outputs, **facts)
        loaded.warn_if_few()
        return loaded


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
    """
    network = unwrap(model)
    layers = {matrix.name: _Layer(block) for matrix in linear_layers(network) if only(matrix.name)}
    examples = 0
    with _listening(network, layers), torch.enable_grad():
        for batch in batches:
            count = _count(batch)
            for layer in layers.values():
                layer.examples = count
            value = loss(model, batch)
            if not torch.isfinite(value):
                raise RankriseError(f"The loss of a batch is {value.item()}: check data and model.")
            if value.requires_grad:
                value.backward()
            examples += count
            progress(examples)
    reached = {name: layer for name, layer in layers.items() if layer.tokens}
    if not reached:
        raise RankriseError("No loss of a batch depends on a linear layer: pass batches, and a loss of them.")
    found = Moments(
        inputs={name: _mean(layer.inputs, layer.tokens) for name, layer in reached.items()},
        outputs={name: _mean(layer.outputs, examples) for name, layer in reached.items()},
        examples=examples,
        about={"model": fingerprint(network), "block": block, **(about or {})},
        tokens={name: layer.tokens for name, layer in reached.items()},
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
    labels = batch["labels"] if "labels" in batch or not is_causal(model) else batch["input_ids"]
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


def add_products(blocks: list[Tensor], rows: Tensor, block: int, factor: float = 1.0) -> None:
    """Add the diagonal blocks of `factor * rows^T rows`, up to `block` long, to those so far, if any."""
    parts = rows.tensor_split(-(-rows.shape[1] // block), dim=1)
    if not blocks:
        blocks += [torch.zeros(part.shape[1], part.shape[1], device=rows.device) for part in parts]
    for total, part in zip(blocks, parts, strict=True):
        total.addmm_(part.mT, part, alpha=factor)


def _mean(blocks: list[Tensor], count: int) -> Moment:
    return Moment(tuple(total.div_(count) for total in blocks))  # in its own memory


class _Layer:
    """The sums of one layer, and the hook that adds to them."""

    def __init__(self, block: int) -> None:
        self.block, self.inputs, self.outputs = block, list[Tensor](), list[Tensor]()
        self.tokens, self.examples = 0, 0  # so far, and in the current batch

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
            rows = rows[reached]
            add_products(self.outputs, rows, self.block, float(self.examples) ** 2)
            add_products(self.inputs, inputs.flatten(0, -2)[reached].float(), self.block)
            self.tokens += len(rows)

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
