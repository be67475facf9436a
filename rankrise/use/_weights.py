"""A base and a tuned model, read one tensor at a time: the matrices that can be cut, and everything else."""

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require
from rankrise.record.names import CONFIG
from rankrise.watch._change import refuse_quantised
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._config import offline
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import ADAPTER_CONFIG, is_adapter_folder
from rankrise.watch._pretrained import open_weights

Source = nn.Module | str | Path
"""A model, a checkpoint folder, or a name on the Hugging Face Hub."""

_NUMBERED = re.compile(r"(^|\.)\d+\.")
"""Marks a module inside one of many similar layers."""


@dataclass(frozen=True)
class Matrix:
    """A layer's weight as a matrix [out, in] that an adapter can change."""

    name: str
    """The module's name."""
    out: int
    into: int
    transposed: bool
    """Whether the weight is stored as [in, out], like GPT-2's Conv1D."""

    @property
    def stored(self) -> str:
        """The name of the weight."""
        return f"{self.name}.weight"

    def matrix(self, weight: Tensor) -> Tensor:
        """The stored weight as [out, in]."""
        return weight.mT if self.transposed else weight

    def weight(self, matrix: Tensor) -> Tensor:
        """The matrix [out, in] as it is stored."""
        return matrix.mT if self.transposed else matrix


@dataclass(frozen=True, eq=False)
class Weights:
    """A model's structure, with its tensors read by name."""

    model: nn.Module
    load: Callable[[str], Tensor | None]
    shape: Callable[[str], tuple[int, ...] | None]
    origin: str
    """The folder or Hub name it was loaded from, or empty."""

    @property
    def name(self) -> str:
        return self.origin or type(self.model).__name__

    def find(self, name: str) -> Tensor | None:
        """A tensor, or None if there is none of this name."""
        found = self.load(name)
        if found is not None and found.is_floating_point():  # buffers may hold integers
            refuse_quantised(found, f"{name} in {self.name}")
        return found

    def read(self, name: str) -> Tensor:
        """A tensor that must exist."""
        found = self.find(name)
        if found is None:
            raise RankriseError(f"{self.name} has no tensor for {name}: restore it.")
        return found

    def cached(self) -> "Weights":
        """Keep each tensor in memory once it has been read."""
        return replace(self, load=cache(self.load))


@dataclass(frozen=True, eq=False)
class Pair:
    """A base and a tuned model: the matrices that both have, and the other tensors."""

    base: Weights
    tuned: Weights
    matrices: tuple[Matrix, ...]
    new: tuple[str, ...]
    """Tensors of modules that the base lacks or has in another shape, such as a new head."""
    others: tuple[str, ...]
    """Tensors that both have and that are not cut: biases, norms, embeddings, tied weights."""

    def only(self, accepted: Callable[[str], bool]) -> "Pair":
        """Cut only the matrices whose module name is accepted."""
        chosen = [matrix for matrix in self.matrices if accepted(matrix.name)]
        if not chosen:
            raise RankriseError("No linear layer is chosen: let `only` accept some of their names.")
        left = [matrix.stored for matrix in self.matrices if not accepted(matrix.name)]
        return replace(self, matrices=tuple(chosen), others=(*self.others, *left))

    def read(self, matrix: Matrix) -> tuple[Tensor, Tensor]:
        """The matrix before and after, each in its own dtype."""
        before, after = self.base.read(matrix.stored), self.tuned.read(matrix.stored)
        for weights, tensor in ((self.base, before), (self.tuned, after)):
            refuse_quantised(tensor, f"{matrix.stored} in {weights.name}")
        return matrix.matrix(before), matrix.matrix(after)

    def changed(self) -> Iterator[tuple[str, Tensor | None, Tensor]]:
        """The other tensors that changed, before and after; before is None where the tensor is new."""
        for name in self.others:
            before, after = self.base.find(name), self.tuned.read(name)
            if before is None or not _equal(before, after):
                yield name, before, after
        for name in self.new:
            yield name, None, self.tuned.read(name)


def pair(base: Source, tuned: Source) -> Pair:
    """Put two checkpoints of one model side by side; refuse two different models.

    >>> both = pair(nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3)))
    >>> both.matrices, both.others
    ((Matrix(name='0', out=3, into=2, transposed=False),), ('0.bias',))
    """
    after = open_source(tuned)
    before = open_source(base, like=tuned if not isinstance(tuned, nn.Module) else _folder_of(after))
    _refuse_another_architecture(base, before, after)
    shapes = {name: tuple(value.shape) for name, value in own_tensors(after.model).items()}
    found = {name: before.shape(name) for name in shapes}
    matrices, new = [], []
    for matrix in linear_layers(after.model):
        shape = found[matrix.stored]
        if shape is None or _is_new_head(matrix, shape):
            new += [name for name in shapes if name.startswith(f"{matrix.name}.")]
        else:
            matrices.append(matrix)
    if not matrices:
        raise RankriseError(
            f"{before.name} and {after.name} have no linear layer in common: pass a base and what was tuned "
            "from it."
        )
    for name in shapes.keys() - set(new):
        if found[name] not in (None, shapes[name]):
            raise RankriseError(
                f"{name} is {list(found[name] or ())} in the base and {list(shapes[name])} in the tuned "
                "model: the two have different architectures or vocabularies."
            )
    taken = {*new, *(matrix.stored for matrix in matrices)}
    return Pair(
        before, after, tuple(matrices), tuple(new), tuple(name for name in shapes if name not in taken)
    )


def open_source(source: Source, like: str | Path | None = None) -> Weights:
    """Open a model or a checkpoint; the checkpoint `like` says the model class where it is given."""
    if isinstance(source, nn.Module):
        model = unwrap(source)
        tensors = model.state_dict()

        def shape(name: str) -> tuple[int, ...] | None:
            return tuple(tensors[name].shape) if name in tensors else None

        return Weights(model, tensors.get, shape, _origin_of(model))
    refuse_adapter(source)
    opened = open_weights(source, Checkpoint.open(like).folder if like is not None else None)
    return Weights(opened.model, lambda name: opened.read(name).get(name), opened.shape, str(source))


def load_model(source: str | Path) -> nn.Module:
    """Load a transformers checkpoint with its weights, on the GPU if there is one."""
    transformers = require("transformers", extra="transformers", purpose="Loading the model of a checkpoint")
    refuse_adapter(source)
    empty: Any = open_weights(source).model
    if not isinstance(empty, transformers.PreTrainedModel):
        raise RankriseError(f"{str(source)!r} is not a transformers checkpoint: load the model and pass it.")
    checkpoint = Checkpoint.open(source)
    folder, wanted = checkpoint.folder, sum(weight.numel() for weight in empty.parameters())
    held = sum(map(checkpoint.size, checkpoint.names))
    if wanted > 2 * held:  # even with 4 bits each; transformers would allocate all of them
        raise RankriseError(
            f"{str(source)!r} has a {CONFIG} of {wanted:,} weights, and {held:,} bytes of them: restore it."
        )
    if (folder / ADAPTER_CONFIG).exists():  # transformers would load the base that it names
        raise RankriseError(f"{str(source)!r} holds both a model and {ADAPTER_CONFIG}: remove one of them.")
    empty.config.return_dict = True
    bars = transformers.utils.logging
    shown = bars.is_progress_bar_enabled()
    bars.disable_progress_bar()
    try:
        with offline():
            loaded, about = type(empty).from_pretrained(
                folder, config=empty.config, local_files_only=True, output_loading_info=True
            )
    except Exception as error:
        raise RankriseError(
            f"transformers cannot load {str(source)!r} ({first_line(error):.200}): restore it."
        ) from error
    finally:
        if shown:
            bars.enable_progress_bar()
    if about["missing_keys"]:  # transformers initialises them at random
        raise RankriseError(f"{str(source)!r} has no tensor for {min(about['missing_keys'])}: restore it.")
    model: nn.Module = loaded.to("cuda") if torch.cuda.is_available() else loaded
    return model


def refuse_adapter(source: str | Path) -> None:
    """Refuse a PEFT adapter in place of a whole model."""
    if is_adapter_folder(source):
        raise RankriseError(
            f"{str(source)!r} is a PEFT adapter, not a whole model: merge it into its base "
            "(merge_and_unload), or cut the adapter itself with 'rankrise shrink'."
        )


def linear_layers(model: nn.Module) -> list[Matrix]:
    """The linear layers whose weight is not tied to another module's.

    >>> linear_layers(nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)))
    [Matrix(name='0', out=3, into=2, transposed=False)]
    """
    owners: dict[int, set[int]] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            owners.setdefault(id(parameter), set()).add(id(module))
    found = []
    for name, module in model.named_modules():
        transposed = is_transposed(module)
        if transposed is None or len(owners[id(module.weight)]) > 1:
            continue
        rows, columns = module.weight.shape
        out, into = (columns, rows) if transposed else (rows, columns)
        found.append(Matrix(name, int(out), int(into), transposed))
    return found


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and persistent buffers by name; tied ones once, by their first name."""
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tied -= {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def is_transposed(module: nn.Module | None) -> bool | None:
    """Whether a linear layer stores its weight as [in, out]; None for other modules."""
    if type(module) is nn.Linear:
        return False
    if type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int):
        return True  # the transformers class, without importing transformers
    return None


def is_causal(model: Any) -> bool:
    """Whether a model predicts each next token."""
    return type(unwrap(model)).__name__.endswith(("ForCausalLM", "LMHeadModel"))


def is_classifier(model: Any) -> bool:
    """Whether a model predicts one class for a text, image, video or sound."""
    kind = type(unwrap(model)).__name__
    return re.search("For(Sequence|Image|Video|Audio)Classification", kind) is not None


def fingerprint(model: Source) -> str:
    """A hash of 64 evenly spaced entries of each linear layer: the same on any device and dtype."""
    weights = open_source(model)
    digest = hashlib.sha256()
    for matrix in linear_layers(weights.model):
        weight = weights.find(matrix.stored)
        if weight is not None:
            entries = weight.detach().flatten()[:: max(1, weight.numel() // 64)].float().cpu()
            digest.update(f"{matrix.name} {list(weight.shape)}\n".encode() + entries.numpy().tobytes())
    return digest.hexdigest()[:16]


def _equal(before: Tensor, after: Tensor) -> bool:
    """Whether two tensors are the same up to the rounding of the coarser dtype."""
    if not (before.is_floating_point() and after.is_floating_point()):
        return torch.equal(before.to(after), after)
    coarser = max((before.dtype, after.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    return torch.equal(before.to(after.device, coarser), after.to(coarser))


def _is_new_head(matrix: Matrix, found: tuple[int, ...]) -> bool:
    """Whether only the number of outputs differs, outside the repeated layers: a new number of classes."""
    if len(found) != 2 or _NUMBERED.search(matrix.name):
        return False
    out, into = found[::-1] if matrix.transposed else found
    return into == matrix.into and out != matrix.out


def _refuse_another_architecture(base: Source, before: Weights, after: Weights) -> None:
    """Refuse models of another type, with other heads, or with more or fewer layers."""
    model: nn.Module | None = before.model
    if isinstance(base, nn.Module):
        pairs = zip(before.model.parameters(), after.model.parameters(), strict=False)
        if all(one.data_ptr() == other.data_ptr() for one, other in pairs):
            raise RankriseError(
                "The base and the tuned model share their weights: keep a copy of the base (copy.deepcopy)."
            )
    else:  # `before` was opened by the tuned model's config
        folder = Checkpoint.open(base).folder
        model = open_weights(base).model if (folder / CONFIG).is_file() else None
    if model is None:
        return
    configs = [getattr(each, "config", None) for each in (model, after.model)]
    for name in ("model_type", "num_attention_heads", "num_key_value_heads"):
        one, other = (getattr(config, name, None) for config in configs)
        if None not in (one, other) and one != other:
            raise RankriseError(
                f"The two have different architectures: {name} is {one} in the base and {other} in the tuned "
                "model."
            )
    has, wanted = (
        {matrix.name for matrix in linear_layers(getattr(each, "base_model", each))}
        for each in (model, after.model)
    )
    alike = {_NUMBERED.sub(".#.", name) for name in has & wanted}
    extra = sorted(name for name in has ^ wanted if _NUMBERED.sub(".#.", name) in alike)
    if extra:
        raise RankriseError(
            f"The two have different architectures: only the {'base' if extra[0] in has else 'tuned model'} "
            f"has {extra[0]}."
        )


def _folder_of(weights: Weights) -> str | Path | None:
    """The checkpoint that a model in memory was loaded from, if it is still on disk."""
    path = _path_of(weights.model)
    return path if path and (Path(path) / CONFIG).is_file() else None


def _path_of(model: Any) -> str:
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def _origin_of(model: Any) -> str:
    """Where a transformers model was loaded from; for one in the Hub's cache, its name on the Hub."""
    path = _path_of(model)
    cached = re.search(r"models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?$", path)
    return cached[1].replace("--", "/", 1) if cached else path
