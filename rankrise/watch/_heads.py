"""Every attention head of a model in one form: `heads(model)`, and the layers that it gives."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload
from weakref import WeakSet

from torch import Tensor, nn

from rankrise.foundations.counted import and_more, counted
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.notes import gathered
from rankrise.foundations.text import printable
from rankrise.watch._ceilings import product_ceilings
from rankrise.watch._families import FAMILIES, Attention
from rankrise.watch._linear import is_linear, plain_name, shapes_only
from rankrise.watch._lora import AdaptedWeights
from rankrise.watch._pretrained import Loaded, open_pretrained
from rankrise.watch._projection import Unreadable
from rankrise.watch._recognise import is_guess, looks_like_attention, recognise, why_unknown
from rankrise.watch._snippets import suggestion

_CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
_PARALLEL = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "DeepSpeedEngine",
    "_FabricModule",
)
"""What training wraps around a model, by the name of the class."""
TO_FILL_IN = (
    "give it the layers of its queries, keys, values and output, and how many heads they are cut into, as "
    "docs/heads.md#your-own-module shows"
)
"""What a family says that the user has to write."""
_announced: WeakSet[type] = WeakSet()
"""Classes of modules whose layout was told to be a guess."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The heads of one attention module; the products are `KQ = key @ query.mT` and `VO = value @ output.mT`.

    `query`, `key`, `value` and `output` are [heads, d_model, d_head], for tokens in rows. Head h has the
    logits `scale * (x @ query[h] + query_bias[h]) @ (y @ key[h] + key_bias[h]).T` for tokens x that look at
    tokens y, and adds `weights @ (y @ value[h] + value_bias[h]) @ output[h].T` to the module's output;
    `output_bias` is added once. In cross attention, `key` and `value` may have another d_model than `query`;
    values may have another size than keys.

    The tensors are views of the model's weights where strides allow it, in their own dtype and on their
    device: clone what is to be kept while training goes on. A key or value that several query heads share is
    repeated for each, and `group[h]` is the number of the one that head h uses. `notes` say what else stands
    between these weights and the model's logits, such as rotary positions.
    """

    name: str
    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor
    group: tuple[int, ...]
    scale: float
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        heads, width, size = self.query.shape
        parts = [f"{counted(heads, 'head')} of size {size} on {width}", *self.notes]
        return printable(f"Layer({self.name}: {'; '.join(parts)})")


@dataclass(frozen=True, eq=False)
class Layers(Sequence[Layer]):
    """The attention layers of a model. Each is read when it is asked for, and none is held."""

    names: tuple[str, ...]
    _modules: tuple[nn.Module, ...]
    _loaded: Loaded
    _adapted: AdaptedWeights | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        notes = []
        for name, module in zip(self.names, self._modules, strict=True):
            with shapes_only():
                attention = recognise(module)
            assert attention is not None
            notes += [(name, note) for note in attention.notes]
        return printable(f"Layers({'; '.join([', '.join(self.names), *gathered(notes)])})")

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> "Layers": ...
    def __getitem__(self, index: int | slice) -> "Layer | Layers":
        if isinstance(index, slice):
            return Layers(self.names[index], self._modules[index], self._loaded, self._adapted)
        name, module = self.names[index], self._modules[index]
        try:
            with _naming(name), self._loaded(module, name):
                attention = recognise(module)
                assert attention is not None
                return _layer(name, attention)
        except Unreadable as refusal:
            raise RankriseError(
                f"{name} cannot be read, since its values are not of the model's shapes: {refusal}. Restore "
                "the checkpoint, or the adapter."
            ) from refusal

    def ceilings(self, index: int) -> dict[str, int]:
        """By product, the highest rank that the change can have that the adapter on disk makes to a head of
        this layer; {} where none was passed."""
        if self._adapted is None:
            return {}
        name, module = self.names[index], self._modules[index]
        paths = {part: f"{name}.{path}".lstrip(".") for path, part in module.named_modules()}
        with shapes_only():
            attention = recognise(module)
        assert attention is not None
        rank_of = self._adapted.rank_of
        return product_ceilings(attention, lambda layer: rank_of(paths[layer]) if layer in paths else 0)


def heads(model: nn.Module | str | Path, *, adapter: str | Path | None = None) -> Layers:
    """Read every attention head of a model, or of a checkpoint on disk, layer by layer.

    `model` is a PyTorch module, also inside DDP, FSDP2, `torch.compile` or PEFT; or the path of a folder or
    file of safetensors with its `config.json`; or the name of a model on the Hugging Face Hub. Of a
    checkpoint, only one attention layer is in memory at a time. `adapter` is the folder of a PEFT LoRA
    adapter of that checkpoint, which is merged into what is read.

    Modules that look like attention and cannot be read are named in a warning, with the reason; if there
    are no others, in an error. docs/heads.md lists the families, and how to add one.

    >>> for layer in heads(nn.TransformerEncoderLayer(d_model=8, nhead=2)):
    ...     print(layer.name, tuple(layer.query.shape), tuple((layer.key @ layer.query.mT).shape))
    self_attn (2, 8, 4) (2, 8, 8)
    """
    if isinstance(model, nn.Module):
        if adapter is not None:
            raise RankriseError(
                "An adapter's folder was passed beside a model: load it onto the model with PEFT, or pass "
                "the path of the base."
            )
        return _layers(unwrap(model), lambda module, name: contextlib.nullcontext())
    if not isinstance(model, (str, Path)):
        kind = "state dict" if isinstance(model, Mapping) else type(model).__name__
        raise RankriseError(
            f"A {kind} was passed, which does not say how its weights are used: load it into its model "
            "and pass the model, or the path of a checkpoint that has a config.json."
        )
    return _layers(*open_pretrained(model, adapter))


def unwrap(model: Any) -> nn.Module:
    """The user's own module inside what training wraps around it.

    >>> import torch
    >>> inner = nn.Linear(2, 2)
    >>> unwrap(torch.compile(nn.DataParallel(inner))) is inner
    True
    """
    while True:
        if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif type(model).__name__ in _PARALLEL:
            model = model.module
        elif "_orig_mod" in model._modules:  # torch.compile
            model = model._orig_mod
        else:
            return model


def find_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The attention modules of a model that are read, by their names, with nothing announced."""
    found, _ = _recognised(model)
    return {plain_name(path): module for path, module in found.items()}


def _layers(model: nn.Module, loaded: Loaded, adapted: AdaptedWeights | None = None) -> Layers:
    """The attention layers of a model. What is not read is accounted for, and what is guessed announced."""
    found, reasons = _recognised(model)
    if not found:
        snippet = next(filter(None, map(suggestion, unread_modules(model))), "")
        raise none_read(model, "such as this one, and prove it with watch.check(model, batch)", snippet)
    if reasons:
        warnings.warn(
            f"Only {len(found)} of {len(found) + len(reasons)} attention layers of {type(model).__name__} "
            f"are read; left out: {_grouped(model, reasons)}.",
            stacklevel=3,
        )
    _announce_guesses(found)
    return Layers(tuple(map(plain_name, found)), tuple(found.values()), loaded, adapted)


def unread_modules(model: nn.Module) -> list[nn.Module]:
    """The modules that look like attention and are not read, and then what calls each of them, such as one
    around a list of heads; where there are none, all that have several linear layers of their own."""
    _, reasons = _recognised(model)
    paths = dict.fromkeys([*reasons, *(_caller(model, path) for path in reasons)])
    if reasons:
        return [model.get_submodule(path) for path in paths]
    return [
        module
        for module in model.modules()
        if not isinstance(module, _CONTAINERS) and sum(map(is_linear, module.children())) > 1
    ]


def none_read(model: nn.Module, such: str, snippet: str) -> RankriseError:
    """The error where no layer of a model is read, with a family for one of them if there is one, and what
    has to be said of it."""
    _, reasons = _recognised(model)
    return RankriseError(
        f"No attention head of {type(model).__name__} can be read (looked for the families "
        f"{', '.join(family.__name__ for family in FAMILIES)}); modules that look like attention: "
        f"{_grouped(model, reasons) or 'none'}. Add a family for your own module with watch.add_family"
        + (f", {such}:\n\n{snippet}\n" if snippet else f": {TO_FILL_IN}.")
    )


def _recognised(model: nn.Module) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """The attention modules of a model by their paths, recognised by their shapes, and why others are not."""
    found: dict[str, nn.Module] = {}
    reasons: dict[str, str] = {}
    inside: str | None = None
    for path, module in model.named_modules():
        if inside is not None and _below(path, inside):
            continue
        try:
            with shapes_only(), _naming(path):
                attention = recognise(module)
                if attention is not None:
                    _layer(path, attention)
                    found[path], inside = module, path
                elif looks_like_attention(module, path):
                    reasons[path] = why_unknown(module)
        except Unreadable as refusal:
            reasons[path] = str(refusal)
    for path in [path for path in reasons if any(_below(other, path) for other in (*found, *reasons))]:
        del reasons[path]  # a block around an attention module, which is read or mentioned itself
    return found, reasons


def _announce_guesses(found: dict[str, nn.Module]) -> None:
    """A layout that was assumed is told once for each class of modules, with what settles it."""
    guesses: dict[tuple[type, str], list[str]] = {}
    for path, module in found.items():
        with shapes_only():
            attention = recognise(module)
        if attention is not None and is_guess(module, attention) and type(module) not in _announced:
            guesses.setdefault((type(module), attention.guess), []).append(path)
    for (kind, guess), paths in guesses.items():
        _announced.add(kind)
        snippet = _another_layout(found[paths[0]])
        layers = printable(plain_name(paths[0]) or kind.__name__) + and_more(len(paths) - 1)
        otherwise = (
            " Only if it works in another way, such as by this family, add that one, and prove it, too:\n\n"
        )
        warnings.warn(
            f"The layout of {layers} is a GUESS: {printable(guess)}. If that is "
            "wrong, so is every rank. Prove it by a forward pass: watch.check(model, batch), or "
            f"RankTracker(..., check=batch).{otherwise + snippet if snippet else ''}",
            stacklevel=4,
        )


def _another_layout(module: nn.Module) -> str:
    """A family that reads the module in another way than it is read; "" where its weights have no values."""
    try:
        return suggestion(module, recognise(module))
    except RankriseError:
        return ""


def _layer(name: str, attention: Attention) -> Layer:
    """The canonical form, with every shape checked."""
    attention.refuse_misfit()
    query, key, value, output = attention.query, attention.key, attention.value, attention.output
    count, groups, group = query.blocks, key.blocks, attention.group_of_head

    def repeated(shared: Tensor) -> Tensor:
        """A view where no group is repeated or there is only one; no strides can say it otherwise."""
        if attention.group:
            return shared[list(group)]
        return shared[:, None].expand(groups, count // groups, *shared.shape[1:]).flatten(0, 1)

    return Layer(
        name=name,
        query=query.weight,
        key=repeated(key.weight.mT).mT,
        value=repeated(value.weight.mT).mT,
        output=output.weight[0].unflatten(0, (count, -1)).transpose(1, 2),
        group=group,
        scale=query.width**-0.5 if attention.scale is None else attention.scale,
        query_bias=query.bias,
        key_bias=None if key.bias is None else repeated(key.bias),
        value_bias=None if value.bias is None else repeated(value.bias),
        output_bias=None if output.bias is None else output.bias[0],
        notes=tuple(dict.fromkeys(attention.notes)),
    )


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Put the module's name before the sentence of an error about its weights."""
    try:
        yield
    except RankriseError as error:
        raise RankriseError(f"{plain_name(name)}: {error}") from None


def _grouped(model: nn.Module, reasons: dict[str, str]) -> str:
    """Each kind of module and reason once, with the first module of that kind and how many more there are."""
    paths: dict[tuple[str, str], list[str]] = {}
    for path, reason in reasons.items():
        kind = type(model.get_submodule(path)).__name__
        paths.setdefault((kind, reason), []).append(plain_name(path))
    return "; ".join(
        f"{these[0]}{and_more(len(these) - 1)} ({kind}): {reason}" for (kind, reason), these in paths.items()
    )


def _caller(model: nn.Module, path: str) -> str:
    """The path of the next module above that is not a container."""
    above = path.rpartition(".")[0]
    return _caller(model, above) if above and isinstance(model.get_submodule(above), _CONTAINERS) else above


def _below(path: str, above: str) -> bool:
    return path != above and (not above or path.startswith(f"{above}."))
