"""Every attention head of a model in one form: `heads(model)`, and which of its modules are attention."""

import re
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch import _roles as roles
from rankrise.watch._checkpoint import Opened, open_weights
from rankrise.watch._families import FAMILIES, ROLES, Attention, Family, assumed_of
from rankrise.watch._linear import (
    Unreadable,
    has_own_forward,
    is_linear,
    plain_name,
    shapes_alone,
    works_as_known,
)
from rankrise.watch._lora import read_adapter

_PARALLEL = re.compile(r"(Distributed|FullySharded)?DataParallel|DeepSpeedEngine|_FabricModule")
_announced: set[type] = set()  # classes whose layout was announced as a guess
_added: list[Family] = []
verdicts: dict[tuple[type, str], str] = {}
"""By class and by what is assumed of it: why a forward pass could not prove the layout; empty if it did."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The heads of one attention module; the products are `KQ = key @ query.mT` and `VO = value @ output.mT`.

    `query`, `key`, `value` and `output` are [heads, d_model, d_head], for tokens in rows. Head h has the
    logits `scale * (x @ query[h] + query_bias[h]) @ (y @ key[h] + key_bias[h]).T` for tokens x that look at
    tokens y, and adds `weights @ (y @ value[h] + value_bias[h]) @ output[h].T` to the module's output;
    `output_bias` is added once.

    The tensors are views of the model's weights where strides allow it: clone what you keep while training
    goes on. A key or value that several query heads share is repeated for each, and `group[h]` is the number
    of the one that head h uses. `notes` say what else acts between these weights and the model's logits.
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
        return f"Layer({'; '.join((f'{self.name}: {heads} heads of size {size} on {width}', *self.notes))})"


@dataclass(frozen=True, eq=False)
class Layers(Sequence[Layer]):
    """The attention layers of a model. Each is read when it is asked for; none is kept."""

    names: tuple[str, ...]
    _modules: tuple[nn.Module, ...] = field(repr=False)
    _opened: Opened | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Layer:  # type: ignore[override]
        name, module = self.names[index], self._modules[index]
        with naming(name), self._opened.loaded(module, name) if self._opened else nullcontext():
            attention = recognise(module)
        assert attention is not None, "its family was removed"
        query, key, value, output = (getattr(attention, role) for role in ROLES)
        count, group = query.blocks, attention.group_of_head

        def repeated(shared: Any) -> Any:
            """One block for each head: a view if no group is repeated, or if there is only one."""
            if shared is None or group == tuple(range(key.blocks)):
                return shared
            return shared.expand(count, *shared.shape[1:]) if key.blocks == 1 else shared[list(group)]

        return Layer(
            name,
            query.weight,
            repeated(key.weight.mT).mT,
            repeated(value.weight.mT).mT,
            output.weight[0].unflatten(0, (count, -1)).transpose(1, 2),
            group,
            scale=query.width**-0.5 if attention.scale is None else attention.scale,
            query_bias=query.bias,
            key_bias=repeated(key.bias),
            value_bias=repeated(value.bias),
            output_bias=None if output.bias is None else output.bias[0],
            notes=attention.notes,
        )


def heads(model: nn.Module | str | Path, *, adapter: str | Path | None = None) -> Layers:
    """Read every attention head of a model, or of a checkpoint on disk, layer by layer.

    `model` is a PyTorch module, also inside DDP, FSDP2, `torch.compile` or PEFT; or the path of a folder or
    file of safetensors with its `config.json`; or the name of a model on the Hugging Face Hub. `adapter` is
    the folder of a PEFT LoRA adapter of that checkpoint, which is merged into what is read.

    Modules that look like attention and cannot be read are named in a warning, or if none can, in an error.

    >>> for layer in heads(nn.TransformerEncoderLayer(d_model=8, nhead=2)):
    ...     print(layer.name, tuple(layer.query.shape), tuple((layer.key @ layer.query.mT).shape))
    self_attn (2, 8, 4) (2, 8, 8)
    """
    opened: Opened | None = None
    if isinstance(model, (str, Path)):
        opened = open_weights(model)
        model = opened.model
    if adapter is not None:
        if opened is None:
            raise RankriseError("adapter is for a checkpoint: load it onto a model with PEFT.")
        opened = replace(opened, adapter=read_adapter(adapter).on(model))
    model = unwrap(model)
    found, reasons = find_attention(model)
    if reasons:
        warnings.warn(
            f"Only {len(found)} of {len(found) + len(reasons)} attention layers of {type(model).__name__} "
            f"are read; left out: {_listed(model, reasons)}.",
            stacklevel=2,
        )
    for path, (module, attention) in found.items():
        kind, guess = type(module), attention.guess
        if guess and kind not in _announced and why_unproved(module, guess):
            _announced.add(kind)
            warnings.warn(
                f"The layout of {plain_name(path) or 'the model'} ({kind.__name__}) is a GUESS: {guess}. "
                "Prove it by a forward pass: watch.check(model, batch).",
                stacklevel=2,
            )
    return Layers(tuple(map(plain_name, found)), tuple(module for module, _ in found.values()), opened)


def unwrap(model: Any) -> nn.Module:
    """The user's own module inside what training wraps around it."""
    while True:
        if hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif _PARALLEL.fullmatch(type(model).__name__):
            model = model.module
        elif "_orig_mod" in model._modules:  # torch.compile
            model = model._orig_mod
        else:
            return model


def _listed(model: nn.Module, reasons: dict[str, str]) -> str:
    """Each kind of module and reason once, with the first module of that kind."""
    first: dict[tuple[str, str], str] = {}
    for path, reason in reasons.items():
        first.setdefault((type(model.get_submodule(path)).__name__, reason), plain_name(path) or "the model")
    return "; ".join(f"{path} ({kind}): {reason}" for (kind, reason), path in first.items())


def add_family(family: Family) -> Family:
    """Teach `heads` the layout of your own module. Usable as a decorator; the latest is asked first.

    docs/heads.md#your-own-module has an example, and how common layouts are cut.
    """
    verdicts.clear()  # they are about other readings
    _added.insert(0, family)
    return family


def remove_family(family: Family) -> None:
    """Forget a family that was added."""
    verdicts.clear()
    _added.remove(family)


def recognise(module: nn.Module) -> Attention | None:
    """The first family's reading of this module, with what it assumes as its guess, and with notes on what it
    leaves out; None if no family knows it."""
    attention = next(filter(None, (family(module) for family in _added)), None)
    added = attention is not None
    if attention is None:
        roles.refuse(module)
        attention = next(filter(None, (family(module) for family in FAMILIES)), None)
    if attention is None:
        return None
    attention.refuse_misfit()
    layers = [layer for layer in attention.layers if isinstance(layer, nn.Module)]
    scale, guess = attention.scale, attention.guess
    if not added:
        scale = roles.scale_of(module) if scale is None else scale
        if not guess and not works_as_known(module) and not isinstance(module, nn.MultiheadAttention):
            guess = assumed_of(module)
        if own := sorted({type(layer).__name__ for layer in layers if has_own_forward(layer)}):
            guess += f"{'; ' * bool(guess)}its {' and '.join(own)} is read as if it gave what nn.Linear gives"
    unproved = why_unproved(module, guess)
    notes = [f"{guess or 'its layout'} ({unproved})"] if unproved else []
    notes += [*attention.notes, *roles.notes_on(module)]
    # gates, relative positions, pooling, sinks; beside bare matrices, only a forward pass can tell
    if not any(isinstance(layer, Tensor) and layer.ndim > 1 for layer in attention.layers):
        read = {weight for layer in layers for weight in layer.parameters()}
        further = [name for name, weight in module.named_parameters() if weight not in read]
        if names := [name.removesuffix(".weight") for name in further if roles.acts_on_heads(name)]:
            notes.append(f"it has further weights that are not read: {', '.join(names)}")
    return replace(attention, scale=scale, guess=guess, notes=tuple(dict.fromkeys(notes)))


def why_unproved(module: nn.Module, guess: str) -> str:
    """Why the layout of a module of this class with this guess may be wrong; empty if it was proved."""
    return verdicts.get((type(module), guess), "not checked, see watch.check" if guess else "")


def find_attention(model: nn.Module) -> tuple[dict[str, tuple[nn.Module, Attention]], dict[str, str]]:
    """The attention modules of a model by path, each with its reading by shapes alone; and why others are not
    read. Raise if none is."""
    found: dict[str, tuple[nn.Module, Attention]] = {}
    reasons: dict[str, str] = {}
    for path, module in model.named_modules():
        if any(_below(path, attention) for attention in found):
            continue
        try:
            with shapes_alone(), naming(path):
                if attention := recognise(module):
                    found[path] = module, attention
                elif _looks_like_attention(module):
                    packed = any("quant" in type(part).__name__.lower() for part in module.modules())
                    reasons[path] = "it is quantised" if packed else "its layout is not known here"
        except Unreadable as refusal:
            reasons[path] = str(refusal)
    for path in [path for path in reasons if any(_below(other, path) for other in (*found, *reasons))]:
        del reasons[path]  # a block around an attention module, which is read or mentioned itself
    if not found:
        raise RankriseError(
            f"No attention head of {type(model).__name__} can be read; modules that look like attention: "
            f"{_listed(model, reasons) or 'none'}. Add a family, as docs/heads.md#your-own-module shows."
        )
    return found, reasons


def _below(path: str, above: str) -> bool:
    return path != above and (not above or path.startswith(f"{above}."))


@contextmanager
def naming(name: str) -> Iterator[None]:
    """Put the module's name before the sentence of an error about its weights."""
    try:
        yield
    except RankriseError as error:
        raise RankriseError(f"{plain_name(name)}: {error}") from None


def _looks_like_attention(module: nn.Module) -> bool:
    """Whether a module that no family reads should be mentioned, for its class or the names of its parts."""
    if re.search("attention|attn|mhsa|multihead", type(module).__name__, re.IGNORECASE):
        return any(True for _ in module.parameters())
    layers = [name for name, child in module.named_children() if any(map(is_linear, child.modules()))]
    bare = [name.removesuffix("_weight") for name, one in module._parameters.items() if one is not None]
    inputs = [name for name in (*layers, *bare) if roles.INPUT.fullmatch(name)]
    return len(inputs) > 1 or any(map(roles.FUSED.fullmatch, inputs))
