"""Second moments of a layer's inputs and of the loss gradients at its outputs: measured, rooted and kept."""

import json
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import read_tensors, write_tensors
from rankrise.use._weights import Only, accepts, fingerprint, is_causal
from rankrise.watch._heads import unwrap
from rankrise.watch._matrix import Matrix, matrices

FORMAT = "rankrise-moments/3"
BLOCK = 4096  # a longer side has its moment in blocks up to this long
DAMPING = 1e-3  # added to every eigenvalue of a moment, as a share of their mean
IGNORED = -100  # the label that transformers leaves out of the loss


@dataclass(frozen=True, eq=False)
class Moment:
    """`E[x x^T]` of the vectors x on one side of a matrix, as diagonal blocks [b, b]."""

    blocks: tuple[Tensor, ...]  # or a single diagonal [n], of one-hot vectors

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
        diagonals = (block if block.ndim == 1 else block.diagonal() for block in blocks)
        mean = sum(float(diagonal.sum()) for diagonal in diagonals) / sum(map(len, blocks))
        added, roots = DAMPING * mean or 1e-24, []
        for block in blocks:
            if block.ndim == 1:
                roots.append((block + added).sqrt().float())
                continue
            damped = (block + block.mT) / 2 + added * torch.eye(len(block)).to(block)
            roots.append(torch.linalg.cholesky(damped).float())
        return Root(tuple(roots))


@dataclass(frozen=True, eq=False)
class Root:
    """A block diagonal L in float32, of lower triangular blocks [b, b] or a single diagonal [n]."""

    blocks: tuple[Tensor, ...]

    def apply(self, matrix: Tensor) -> Tensor:
        """`L^T @ matrix`."""
        if self.blocks[0].ndim == 1:
            return self.blocks[0][:, None].to(matrix) * matrix
        return torch.cat([block.mT @ rows for block, rows in self._parts(matrix)])

    def undo(self, matrix: Tensor) -> Tensor:
        """`L^-T @ matrix`."""
        if self.blocks[0].ndim == 1:
            return matrix / self.blocks[0][:, None].to(matrix)
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
        if self.blocks[0].ndim == 1:
            return float(self.blocks[0].max())
        squares = []
        for block in map(Tensor.double, self.blocks):
            vector = block.mT @ torch.ones(len(block), 1).to(block)
            for _ in range(50):
                vector = block.mT @ (block @ (vector / torch.linalg.vector_norm(vector)))
            squares.append(float(torch.linalg.vector_norm(vector)))
        return max(squares) ** 0.5


Roots = tuple[Root, Root]  # of a matrix's C and G
ExpertRoots = list[Roots]  # of all matrices in a parameter


@dataclass(frozen=True, eq=False)
class Moments:
    """Second moments by module name, or by the name of a parameter and the number of an expert in it.

    C is the moment of a layer's inputs, averaged over the tokens that the loss reaches. G is that of the loss
    gradients at its outputs, summed over the tokens of an example and averaged over examples. A convolution's
    tokens are the places of its kernel, and an expert's those that were sent to it.
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
        blocks = {name: moment.blocks for name, moment in self.inputs.items()}
        widths = {name: max(map(len, some)) for name, some in blocks.items() if some[0].ndim == 2}
        short = [name for name, width in widths.items() if self.tokens[name] < width]
        if 2 * len(short) > len(widths):
            warnings.warn(
                f"Too few examples for moments: {len(short)} of {len(widths)} layers saw fewer tokens than "
                f"they have inputs, such as {short[0]}; use more examples.",
                stacklevel=3,
            )

    def roots(self, matrix: Matrix, device: Any = None) -> Roots | ExpertRoots:
        """The roots of a matrix's C and G; of each expert's if it holds experts."""
        if matrix.parts[0] not in self.inputs:
            eager = ', or load the model with experts_implementation="eager"' * bool(matrix.experts)
            raise RankriseError(f"There are no moments of {matrix.name}: leave it out with `only`{eager}.")

        def of(name: str) -> Roots:
            sides = self.inputs[name], self.outputs[name].part(matrix.first, matrix.first + matrix.out)
            if sum(map(len, sides[0].blocks)) != matrix.into:  # PEFT takes Llama 4's inputs for its outputs
                sides = self.outputs[name], self.inputs[name]
            return sides[0].root(device), sides[1].root(device)

        return [of(name) for name in matrix.parts] if matrix.experts else of(matrix.name)

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
    only: Only = "*",
    about: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] = lambda examples: None,
) -> Moments:
    """Measure second moments of the inputs of every matrix, and of the loss gradients at its outputs.

    `loss(model, batch)` is the mean loss of a batch, such as `use.sampled`. Moments stay on the model's
    device and take 4 bytes per entry: 40 GB for Llama 2 7B, or 10 GB with `block=1024`. What you pass as
    `about` is kept in their file.
    """
    network = unwrap(model)
    layers = [_Layer(matrix, block) for matrix in matrices(network) if accepts(only, matrix.name)]
    examples = 0
    with _listening(network, layers), torch.enable_grad():
        for batch in batches:
            count = _count(batch)
            for layer in layers:
                layer.examples = count
            value = loss(model, batch)
            if not torch.isfinite(value):
                raise RankriseError(f"The loss of a batch is {value.item()}: check data and model.")
            if value.requires_grad:
                value.backward()
            examples += count
            progress(examples)
    reached = [layer.sums for layer in layers if any(one.tokens for one in layer.sums.values())]
    sums = {name: one for some in reached for name, one in some.items()}
    if not sums:
        raise RankriseError("No loss of a batch depends on a matrix: pass batches, and a loss of them.")

    def mean(blocks: list[Tensor], count: int) -> Moment:
        return Moment(tuple(total.div_(count) for total in blocks))  # in its own memory

    found = Moments(
        inputs={name: mean(one.inputs, max(one.tokens, 1)) for name, one in sums.items()},
        outputs={name: mean(one.outputs, examples) for name, one in sums.items()},
        examples=examples,
        about={"model": fingerprint(network), "block": block, **(about or {})},
        tokens={name: one.tokens for name, one in sums.items()},
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
    return nn.functional.cross_entropy(*predictions(model, batch))


def predictions(model: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The logits [n, classes] of all predictions in a batch, and the right classes [n]."""
    logits, counted = _logits(model, batch)
    labels = batch["labels"] if "labels" in batch or not is_causal(model) else batch["input_ids"]
    if is_causal(model):
        labels = nn.functional.pad(labels[:, 1:], (0, 1), value=IGNORED)
    return logits[counted], labels[counted]


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


@dataclass(eq=False)
class _Sums:
    """The sums of one matrix [out, in]."""

    inputs: list[Tensor] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    tokens: int = 0


class _Layer:
    """The sums of a module, or of all experts in a parameter, and how they are added to."""

    def __init__(self, matrix: Matrix, block: int) -> None:
        self.matrix, self.block = matrix, block
        self.sums, self.examples = dict[str, _Sums](), 0  # by name of the part; examples in the batch

    def forward(
        self, layer: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Tensor
    ) -> Tensor:
        """Have the backward pass add the tokens that it reaches."""
        inputs = (given[0] if given else next(iter(named.values()))).detach()

        def backward(gradient: Tensor) -> None:
            if self.matrix.kernel:
                gradient = gradient.movedim(1, -1)
            rows = inputs.flatten() if self.matrix.embedding else self._patches(layer, inputs)
            self.add(self.matrix.name, rows, gradient.flatten(0, -2))

        return _followed(output, backward)

    def _patches(self, layer: Any, inputs: Tensor) -> Tensor:
        """The inputs as rows; of a convolution, what lies under its kernel at each place."""
        if not self.matrix.kernel:
            return inputs.flatten(0, -2)
        inputs = nn.functional.pad(inputs, layer._reversed_padding_repeated_twice)
        for place, (size, step) in enumerate(zip(layer.kernel_size, layer.stride, strict=True), 2):
            inputs = inputs.unfold(place, size, step)
        places = len(layer.kernel_size)
        return inputs.movedim(1, 1 + places).flatten(1 + places).flatten(0, -2)

    def product(self, inputs: Tensor, expert: int | None, output: Tensor, ends: Tensor | None) -> Tensor:
        """Follow a product with one expert, or with all at once; `ends` say where the rows of each end."""

        def backward(gradient: Tensor) -> None:
            parts, rows, gradients = self.matrix.parts, inputs.detach(), gradient
            for name in parts if not self.sums else ():  # those that no token reaches have moments of 0
                self.add(name, rows.flatten(0, -2)[:0], gradient.flatten(0, -2)[:0])
            if expert is not None:
                parts, rows, gradients = parts[expert : expert + 1], rows[None], gradient[None]
            elif ends is not None:
                sizes, last = ends.diff(prepend=ends.new_zeros(1)).tolist(), int(ends[-1])
                rows, gradients = rows[:last].split(sizes), gradient[:last].split(sizes)
            for part in zip(parts, rows, gradients, strict=True):
                self.add(*part)

        return _followed(output, backward)

    def add(self, name: str, inputs: Tensor, gradients: Tensor) -> None:
        sums, rows = self.sums.setdefault(name, _Sums()), gradients.float()
        reached = rows.abs().amax(1) != 0  # leaves out padding, and keeps nan
        rows, inputs = rows[reached], inputs[reached]
        add_products(sums.outputs, rows, self.block, float(self.examples) ** 2)
        if self.matrix.embedding:
            counts = inputs.bincount(minlength=self.matrix.into).float()
            sums.inputs = [counts + sums.inputs[0] if sums.inputs else counts]
        else:
            add_products(sums.inputs, inputs.float(), self.block)
        sums.tokens += len(rows)


def _followed(output: Tensor, backward: Callable[[Tensor], None]) -> Tensor:
    """An output that calls `backward` with the gradient of the loss."""
    first = not output.requires_grad
    if first:
        output = output.detach().requires_grad_()
    output.register_hook(backward)
    return output.clone() if first else output


class _Products(TorchFunctionMode):
    """Follows products with fused experts, which no hook of a module sees."""

    def __init__(self, layers: Mapping[int, _Layer]) -> None:
        super().__init__()
        self.layers = layers  # by id of the parameter

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output, weight = function(*args, **(kwargs or {})), args[1] if len(args) > 1 else None
        if not isinstance(output, Tensor) or not isinstance(weight, Tensor):
            return output
        whole = weight if weight._base is None else weight._base
        layer, expert = self.layers.get(id(whole)), None
        if layer is None:
            return output
        if weight.ndim == 2:
            expert = (weight.storage_offset() - whole.storage_offset()) // weight.numel()
        return layer.product(args[0], expert, output, (kwargs or {}).get("offs"))


@contextmanager
def _listening(model: nn.Module, layers: Sequence[_Layer]) -> Iterator[None]:
    """Follow every forward and backward pass; no weight gets a gradient meanwhile."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    training = model.training
    experts = {id(model.get_parameter(one.matrix.name)): one for one in layers if one.matrix.experts}
    handles = [
        model.get_submodule(layer.matrix.name).register_forward_hook(layer.forward, with_kwargs=True)
        for layer in layers
        if not layer.matrix.experts
    ]
    model.eval()
    model.requires_grad_(False)
    try:
        with _Products(experts) if experts else nullcontext():
            yield
    finally:
        for handle in handles:
            handle.remove()
        for parameter in trained:
            parameter.requires_grad_(True)
        model.train(training)
