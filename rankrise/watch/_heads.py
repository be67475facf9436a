"""Every attention head of a model in one form: `heads(model)`, and the layers that it gives."""

import re
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload
from weakref import WeakSet

from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch import _roles as roles
from rankrise.watch._ceilings import product_ceilings
from rankrise.watch._families import Attention
from rankrise.watch._linear import is_linear, plain_name
from rankrise.watch._lora import read_adapter
from rankrise.watch._pretrained import Opened, open_weights
from rankrise.watch._recognise import find_attention, naming, read_shapes, recognised

_PARALLEL = re.compile(r"(Distributed|FullySharded)?DataParallel|DeepSpeedEngine|_FabricModule")
"""What training wraps around a model, by the name of the class."""
_announced: WeakSet[type] = WeakSet()
"""Classes of modules whose layout was announced as a guess."""


@dataclass(frozen=True, eq=False)
class Layer:
    """The heads of one attention module; the products are `KQ = key @ query.mT` and `VO = value @ output.mT`.

    `query`, `key`, `value` and `output` are [heads, d_model, d_head], for tokens in rows. Head h has the
    logits `scale * (x @ query[h] + query_bias[h]) @ (y @ key[h] + key_bias[h]).T` for tokens x that look at
    tokens y, and adds `weights @ (y @ value[h] + value_bias[h]) @ output[h].T` to the module's output;
    `output_bias` is added once. In cross attention, `key` and `value` may have another d_model than `query`.
    Values may have another size than keys.

    The tensors are views of the model's weights where strides allow it, in their own dtype and on their
    device: clone what you keep while training goes on. A key or value that several query heads share is
    repeated for each, and `group[h]` is the number of the one that head h uses. `notes` say what else acts
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
        return f"Layer({'; '.join([f'{self.name}: {heads} heads of size {size} on {width}', *self.notes])})"

    @classmethod
    def of(cls, name: str, attention: Attention) -> "Layer":
        """The layer that a family's reading describes."""
        query, key, value, output = attention.query, attention.key, attention.value, attention.output
        count, groups, group = query.blocks, key.blocks, attention.group_of_head

        def repeated(shared: Tensor) -> Tensor:
            """One block for each head: a view if no group is repeated, or if there is only one."""
            if groups == 1:
                return shared.expand(count, *shared.shape[1:])
            return shared if group == tuple(range(groups)) else shared[list(group)]

        return cls(
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


@dataclass(frozen=True, eq=False)
class Layers(Sequence[Layer]):
    """The attention layers of a model. Each is read when it is asked for; none is kept."""

    names: tuple[str, ...]
    _modules: tuple[nn.Module, ...]
    _opened: Opened | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        notes = dict.fromkeys(note for module in self._modules for note in read_shapes(module).notes)
        return f"Layers({'; '.join([', '.join(self.names), *notes])})"

    @overload
    def __getitem__(self, index: int) -> Layer: ...
    @overload
    def __getitem__(self, index: slice) -> "Layers": ...
    def __getitem__(self, index: int | slice) -> "Layer | Layers":
        if isinstance(index, slice):
            return Layers(self.names[index], self._modules[index], self._opened)
        name, module = self.names[index], self._modules[index]
        with naming(name), self._opened.loaded(module, name) if self._opened else nullcontext():
            return Layer.of(name, recognised(module))

    def ceilings(self, index: int) -> dict[str, int]:
        """By product, the highest rank of the change that the adapter on disk can make to a head; {} if none
        was passed."""
        if self._opened is None or self._opened.adapter is None:
            return {}
        name, module, rank_of = self.names[index], self._modules[index], self._opened.adapter.rank_of
        ranks = {part: rank_of(f"{name}.{path}".lstrip(".")) for path, part in module.named_modules()}
        return product_ceilings(read_shapes(module), lambda layer: ranks.get(layer, 0))


def heads(model: nn.Module | str | Path, *, adapter: str | Path | None = None) -> Layers:
    """Read every attention head of a model, or of a checkpoint on disk, layer by layer.

    `model` is a PyTorch module, also inside DDP, FSDP2, `torch.compile` or PEFT; or the path of a folder or
    file of safetensors with its `config.json`; or the name of a model on the Hugging Face Hub. Only one
    attention layer of a checkpoint is in memory at a time. `adapter` is the folder of a PEFT LoRA adapter of
    that checkpoint, which is merged into what is read.

    Modules that look like attention and cannot be read are named in a warning, with the reason; if no module
    can be read, in an error. docs/heads.md lists the families, and how to add one.

    >>> for layer in heads(nn.TransformerEncoderLayer(d_model=8, nhead=2)):
    ...     print(layer.name, tuple(layer.query.shape), tuple((layer.key @ layer.query.mT).shape))
    self_attn (2, 8, 4) (2, 8, 8)
    """
    opened: Opened | None = None
    if isinstance(model, (str, Path)):
        opened = open_weights(model)
        if adapter is not None:
            opened = replace(opened, adapter=read_adapter(adapter).on(opened.model))
        model = opened.model
    elif not isinstance(model, nn.Module):
        raise RankriseError(
            f"heads was given a {type(model).__name__}, which does not say how its weights are used: load "
            "them into a model and pass that, or the path of a checkpoint that has a config.json."
        )
    elif adapter is not None:
        raise RankriseError("adapter is for a checkpoint: load it onto a model with PEFT.")
    model = unwrap(model)
    found, reasons = find_attention(model)
    if not found:
        raise none_read(model)
    if reasons:
        warnings.warn(
            f"Only {len(found)} of {len(found) + len(reasons)} attention layers of {type(model).__name__} "
            f"are read; left out: {_listed(model, reasons)}.",
            stacklevel=2,
        )
    for path, module in found.items():
        guess = read_shapes(module).guess
        if guess and type(module) not in _announced:
            _announced.add(type(module))
            warnings.warn(
                f"The layout of {plain_name(path) or 'the model'} ({type(module).__name__}) is a GUESS: "
                f"{guess}. If that is wrong, so is every rank. Prove it by a forward pass: "
                "watch.check(model, batch), or RankTracker(..., check=batch).",
                stacklevel=2,
            )
    return Layers(tuple(map(plain_name, found)), tuple(found.values()), opened)


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
        elif _PARALLEL.fullmatch(type(model).__name__):
            model = model.module
        elif "_orig_mod" in model._modules:  # torch.compile
            model = model._orig_mod
        else:
            return model


def none_read(model: nn.Module) -> RankriseError:
    """The error for a model of which no layer can be read."""
    _, reasons = find_attention(model)
    template = family_template(model.get_submodule(next(iter(reasons)))) if reasons else ""
    return RankriseError(
        f"No attention head of {type(model).__name__} can be read; modules that look like attention: "
        f"{_listed(model, reasons) or 'none'}. Add a family for your own module, as "
        f"docs/heads.md#your-own-module shows, and prove it with watch.check(model, batch).{template}"
    )


_TEMPLATE = """

@watch.add_family
def mine(module):
    if type(module).__name__ == "{kind}":
        query, key, value = (watch.linear(part).cut({heads}) for part in ({inputs}))
        # or, from one layer, per head [q, k, v]: watch.linear(...).cut({heads}).split(3)
        return watch.Attention(query, key, value, watch.linear(module.{output}))
"""


def family_template(module: nn.Module) -> str:
    """Code of a family to start from, with the names of the module's own linear layers."""
    layers = [name for name, child in module.named_children() if is_linear(child)] or ["..."]
    output = next(filter(roles.OUTPUT.fullmatch, layers), layers[-1])
    inputs = ", ".join(f"module.{name}" for name in layers if name != output)
    heads = next((f"module.{name}" for name in roles.HEADS if roles.number(module, (name,))), "HEADS")
    return _TEMPLATE.format(kind=type(module).__name__, heads=heads, inputs=inputs, output=output)


def _listed(model: nn.Module, reasons: dict[str, str]) -> str:
    """Each kind of module and reason once, with the first module of that kind."""
    first: dict[tuple[str, str], str] = {}
    for path, reason in reasons.items():
        first.setdefault((type(model.get_submodule(path)).__name__, reason), plain_name(path) or "the model")
    return "; ".join(f"{path} ({kind}): {reason}" for (kind, reason), path in first.items())
