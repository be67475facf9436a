"""The weights of two models side by side, one at a time: which can be cut, and what else has changed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.record.names import CONFIG
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._factors import refuse_quantised
from rankrise.watch._heads import unwrap
from rankrise.watch._lora import is_adapter_folder
from rankrise.watch._pretrained import open_weights

Source = nn.Module | str | Path
"""A model; or a checkpoint, by its folder or its name on the Hugging Face Hub."""

_INSIDE = re.compile(r"(^|\.)\d+\.")
"""In the name of a module that lies in one of many layers that are alike."""


@dataclass(frozen=True, eq=False)
class Weights:
    """A model's structure, and what reads tensors and their shapes by name; None where there is none."""

    model: nn.Module
    read: Callable[[str], Tensor | None]
    shape: Callable[[str], tuple[int, ...] | None]
    name: str
    """Where the model comes from; its class, of one that comes from nowhere."""
    origin: str
    """The folder, or the name on the Hub, that it was loaded from; empty if it was not."""

    def held(self) -> "Weights":
        """The same, each tensor read at most once and kept in memory."""
        return replace(self, read=cache(self.read))


@dataclass(frozen=True)
class Matrix:
    """A linear layer that an adapter can hold: its module's name and how its weight is stored."""

    name: str
    out: int
    into: int
    transposed: bool
    """Whether the weight is stored [in, out], as in GPT-2's Conv1D."""

    def oriented(self, weight: Tensor) -> Tensor:
        """The weight as [out, in]."""
        return weight.mT if self.transposed else weight


@dataclass(frozen=True, eq=False)
class Pair:
    """A base and a tuned model: the matrices that both have, and the other parameters."""

    base: Weights
    tuned: Weights
    matrices: tuple[Matrix, ...]
    new: tuple[str, ...]
    """Parameters of modules that the base lacks or has in another shape, such as a new head."""
    others: tuple[str, ...]
    """What a low rank cannot hold: biases, norms, embeddings, and weights tied to them."""

    def only(self, accepted: Callable[[str], bool]) -> "Pair":
        """The same with those matrices alone whose module's name is accepted; the others are not cut."""
        chosen = [matrix for matrix in self.matrices if accepted(matrix.name)]
        left = [f"{matrix.name}.weight" for matrix in self.matrices if not accepted(matrix.name)]
        return replace(self, matrices=tuple(chosen), others=(*self.others, *left))

    def read(self, matrix: Matrix) -> tuple[Tensor, Tensor]:
        """The weight before and after, [out, in], each in its own dtype."""
        name = f"{matrix.name}.weight"
        before, after = _present(self.base, name), _present(self.tuned, name)
        for weights, tensor in ((self.base, before), (self.tuned, after)):
            refuse_quantised(tensor, f"{name} in {weights.name}")
        return matrix.oriented(before), matrix.oriented(after)

    def changed(self) -> Iterator[tuple[str, Tensor]]:
        """All other tensors that have changed or are new, as they are in the tuned model."""
        for name in self.others:
            before, after = self.base.read(name), self.after(name)
            if before is None or not _equal(before, after):
                yield name, after
        for name in self.new:
            yield name, self.after(name)

    def after(self, name: str) -> Tensor:
        """A tensor of the tuned model."""
        return _present(self.tuned, name)


def pair(base: Source, tuned: Source) -> Pair:
    """Two moments of one model, side by side; two different models are refused in one sentence.

    >>> base, tuned = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Linear(2, 3))
    >>> both = pair(base, tuned)
    >>> both.matrices, both.others
    ((Matrix(name='0', out=3, into=2, transposed=False),), ('0.bias',))
    """
    after = open_source(tuned)
    before = open_source(base, _folder_of(tuned))
    _refuse_other_architecture(_own_model(base), after.model)
    if isinstance(base, nn.Module) and isinstance(tuned, nn.Module) and _same_storage(base, tuned):
        raise RankriseError(
            "The base and the tuned model share their weights, so nothing can have changed: keep a copy of "
            "the base (copy.deepcopy)."
        )
    shapes = {name: tuple(value.shape) for name, value in own_tensors(after.model).items()}
    for name, shape in shapes.items():
        stored = after.shape(name)
        if stored not in (None, shape):
            raise RankriseError(
                f"{after.name} is damaged ({name} is {list(stored or ())}, and by its configuration "
                f"{list(shape)}): restore it."
            )
    matrices: list[Matrix] = []
    new: list[str] = []
    for matrix in linear_layers(after.model):
        name = f"{matrix.name}.weight"
        found = before.shape(name)
        if found is None or _is_new_head(matrix, found):
            new += [other for other in shapes if other.startswith(f"{matrix.name}.")]
        else:
            _refuse_other_shape(name, found, shapes[name])
            matrices.append(matrix)
    if not matrices:
        raise RankriseError(
            f"{before.name} and {after.name} have no linear layer in common: give two moments of one model."
        )
    taken = {*new, *(f"{matrix.name}.weight" for matrix in matrices)}
    others = [name for name in shapes if name not in taken]
    for name in others:
        stored = before.shape(name)
        if stored is not None:
            _refuse_other_shape(name, stored, shapes[name])
    return Pair(before, after, tuple(matrices), tuple(new), tuple(others))


def open_source(source: Source, like: str | Path | None = None) -> Weights:
    """A model as it is, or a checkpoint read by the model class that it, or the checkpoint `like`, names."""
    if isinstance(source, nn.Module):
        model = unwrap(source)
        tensors = model.state_dict()
        origin = _origin_of(model)
        name = origin or type(model).__name__
        read = partial(_read, tensors.get, name)
        return Weights(model, read, lambda name: _shape(tensors.get(name)), name, origin)
    refuse_adapter(source)
    opened = open_weights(source, Checkpoint.open(like).folder if like is not None else None)
    origin = str(source)
    read = partial(_read, lambda name: opened.read(name).get(name), origin)
    return Weights(opened.model, read, opened.shape, origin, origin)


def refuse_adapter(source: str | Path) -> None:
    """Refuse a PEFT adapter in the place of a whole model."""
    if is_adapter_folder(source):
        raise RankriseError(
            f"{str(source)!r} is a PEFT adapter, not a whole model: merge it into its base, as in "
            f"PeftModel.from_pretrained(base, {str(source)!r}).merge_and_unload().save_pretrained('tuned'), "
            "or cut the adapter itself with 'rankrise shrink'."
        )


def linear_layers(model: nn.Module) -> list[Matrix]:
    """The linear layers whose weight no other module uses: an embedding that is tied to one changes with it.

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
    """The parameters and kept buffers by name; of those that are tied, the first name alone."""
    tied = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    tied -= {name for name, _ in model.named_parameters()}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in tied}


def is_transposed(module: nn.Module) -> bool | None:
    """Of a linear layer, whether its weight is stored [in, out]; None of any other module."""
    if type(module) is nn.Linear:
        return False
    if type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int):
        return True  # of transformers, which need not be installed
    return None


def _read(read: Callable[[str], Tensor | None], source: str, name: str) -> Tensor | None:
    """A tensor by name: buffers hold whole numbers too, and no float of fewer bits than a weight has."""
    found = read(name)
    if found is not None and found.is_floating_point():
        refuse_quantised(found, f"{name} in {source}")
    return found


def _present(weights: Weights, name: str) -> Tensor:
    found = weights.read(name)
    if found is None:
        raise RankriseError(f"{weights.name} has no tensor for {name}: restore it.")
    return found


def _shape(tensor: Tensor | None) -> tuple[int, ...] | None:
    return None if tensor is None else tuple(tensor.shape)


def _equal(before: Tensor, after: Tensor) -> bool:
    """Whether they are the same but for the rounding of the coarser of their dtypes."""
    if not (before.is_floating_point() and after.is_floating_point()):
        return torch.equal(before.to(after), after)
    coarser = max((before.dtype, after.dtype), key=lambda dtype: torch.finfo(dtype).eps)
    return torch.equal(before.to(after.device, coarser), after.to(coarser))


def _is_new_head(matrix: Matrix, found: tuple[int, ...]) -> bool:
    """Whether a layer has as many inputs as before and other outputs: another number of classes. One of many
    layers that are alike is no head: the keys of `layers.0` may be fewer in another architecture."""
    if len(found) != 2 or _INSIDE.search(matrix.name):
        return False
    out, into = found[::-1] if matrix.transposed else found
    return into == matrix.into and out != matrix.out


def _own_model(source: Source) -> nn.Module | None:
    """A model, or the empty one that a checkpoint's own config describes; None where it has no config."""
    if isinstance(source, nn.Module):
        return unwrap(source)
    folder = Checkpoint.open(source).folder
    return open_weights(source).model if (folder / CONFIG).is_file() else None


def _refuse_other_architecture(base: nn.Module | None, tuned: nn.Module) -> None:
    """Refuse two models of another type or with other heads, or of which one has more of the layers that both
    have; what they predict may differ."""
    if base is None:
        return
    configs = [getattr(model, "config", None) for model in (base, tuned)]
    for name in ("model_type", "num_attention_heads", "num_key_value_heads"):
        before, after = (getattr(config, name, None) for config in configs)
        if None not in (before, after) and before != after:
            raise RankriseError(
                f"The two are of different architectures: {name} is {before} in the base's config, {after} "
                "in the tuned model's; give two moments of one model."
            )
    has, wanted = (
        {matrix.name for matrix in linear_layers(getattr(model, "base_model", model))}
        for model in (base, tuned)
    )
    kinds = {_INSIDE.sub(".#.", name) for name in has & wanted}
    for name in sorted(has ^ wanted):
        if _INSIDE.sub(".#.", name) in kinds:
            which, lacking = ("base", "tuned model") if name in has else ("tuned model", "base")
            raise RankriseError(
                f"The two are of different architectures: the {which} has {name}, which the {lacking} lacks; "
                "give two moments of one model."
            )


def _refuse_other_shape(name: str, before: tuple[int, ...], after: tuple[int, ...]) -> None:
    if before != after:
        raise RankriseError(
            f"The two are of different architectures or vocabularies: {name} is {list(before)} in the base "
            f"and {list(after)} in the tuned model; give two moments of one model."
        )


def _folder_of(source: Source) -> str | Path | None:
    """The checkpoint that names the model class; None of a model that was not loaded from one."""
    if not isinstance(source, nn.Module):
        return source
    name = _path_of(unwrap(source))
    return name if name and (Path(name) / CONFIG).is_file() else None


def _path_of(model: Any) -> str:
    """What a model of transformers was loaded from; empty if nothing."""
    return str(getattr(getattr(model, "config", None), "_name_or_path", "") or "")


def _origin_of(model: Any) -> str:
    """The same, of a model in the Hub's cache its name on the Hub."""
    path = _path_of(model)
    cached = re.search(r"models--([^/\\]+)[/\\]snapshots[/\\][^/\\]+[/\\]?$", path)
    return cached[1].replace("--", "/", 1) if cached else path


def _same_storage(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(unwrap(one).parameters(), unwrap(other).parameters(), strict=False)
    return all(a.data_ptr() == b.data_ptr() for a, b in pairs)
