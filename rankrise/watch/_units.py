"""What is tracked, and how its weights leave the model: as views if possible, else read afresh."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import tensor_name
from rankrise.watch._families import PRODUCTS
from rankrise.watch._heads import heads as heads_of
from rankrise.watch._heads import recognise, unwrap
from rankrise.watch._linear import is_linear, linear, plain_name, shapes_alone

Tensors = dict[str, Tensor]
Layers = int | str | Iterable[int | str] | None


@dataclass(eq=False)
class Unit:
    """One tracked attention layer, or one other tracked matrix, which has no heads.

    `group[i]` is the number of the key and value that the tracked head `heads[i]` uses.
    """

    name: str
    path: str
    module: nn.Module
    fresh: Callable[[nn.Module], Tensors]
    """Reads key and value [groups, d, d_head], query and output [heads, d, d_head]; or the matrix [m, n]."""
    roles: tuple[str, ...] = ("matrix",)
    heads: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)
    """What run.json holds of it."""
    live: bool = False
    """Whether `read` gave views of the model's parameters."""
    _views: Tensors = field(default_factory=dict)
    _addresses: list[int] = field(default_factory=list)

    @property
    def is_layer(self) -> bool:
        return bool(self.heads)

    def key(self, role: str) -> str:
        """The name of one of its tensors in files."""
        return tensor_name(self.name, role) if self.is_layer else self.name

    @property
    def products(self) -> list[str]:
        """The names of its products; of a matrix none."""
        return [product for product, roles in PRODUCTS.items() if set(roles) <= set(self.roles)]

    def factors(self, weights: Tensors, product: str, heads: range) -> Iterator[Tensor]:
        """Both factors of those tracked heads; keys and values that heads share are repeated."""
        for role in PRODUCTS[product]:
            factor = weights[role]
            if role in ("key", "value") and len(factor) < len(self.heads):
                groups = list(dict.fromkeys(self.group))
                yield torch.stack([factor[groups.index(self.group[head])] for head in heads])
            else:
                yield factor[heads.start : heads.stop]

    @property
    def sharded(self) -> bool:
        """Whether every process has to take part in reading it."""
        return any(isinstance(parameter, DTensor) for parameter in self.module.parameters())

    def read(self) -> Tensors:
        """Its weights as they are now: sharded ones gathered, adapters merged into a copy."""
        if self.sharded:
            return self.fresh(self.module)
        parameters = list(self.module.parameters())
        addresses = [parameter.data_ptr() for parameter in parameters]
        if self.live and addresses == self._addresses:  # the views keep their memory from being used again
            return self._views
        tensors = self.fresh(self.module)
        owned = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self.live = all(tensor.untyped_storage().data_ptr() in owned for tensor in tensors.values())
        self._views, self._addresses = tensors if self.live else {}, addresses
        return tensors


def find_units(
    model: nn.Module,
    products: str | Iterable[str] = ("KQ", "VO"),
    layers: Layers = None,
    heads: int | Iterable[int] | None = None,
    matrices: str | Iterable[str] = (),
) -> list[Unit]:
    """Everything of `model` that is asked for, in the order of its modules. No weight is read yet."""
    wanted = several(products)
    if not set(wanted) <= set(PRODUCTS):
        raise RankriseError(f"products is {wanted}: pass some of {', '.join(PRODUCTS)}.")
    found = list(_layers(model, wanted, several(layers), several(heads))) if wanted else []
    found += _matrices(unwrap(model), several(matrices))
    if not found:
        raise RankriseError("products, layers and matrices choose nothing: leave them out, or pass some.")
    return found


def several(asked: Any) -> Any:
    """A tuple of what a user passed, one or several; None, which is all, stays."""
    return (asked,) if isinstance(asked, (str, int)) else asked if asked is None else tuple(asked)


def _layers(
    model: nn.Module,
    products: tuple[str, ...],
    layers: tuple[int | str, ...] | None,
    heads: tuple[int, ...] | None,
) -> Iterator[Unit]:
    found = heads_of(model)
    paths = {module: path for path, module in unwrap(model).named_modules()}
    roles = tuple(role for product, pair in PRODUCTS.items() if product in products for role in pair)
    wanted = set(found.names if layers is None else ())
    for asked in layers or ():
        here = [
            name
            for index, name in enumerate(found.names)
            if (fnmatchcase(name, asked) if isinstance(asked, str) else index == asked)
        ]
        if not here:
            raise RankriseError(
                f"layers has {asked!r}, which is not one of the {len(found)} attention layers "
                f"{found.names[0]} ... {found.names[-1]}: pass numbers from 0 or patterns of such names."
            )
        wanted |= set(here)
    for name, module in zip(found.names, found._modules, strict=True):
        if name not in wanted:
            continue
        with shapes_alone():
            attention = recognise(module)
        assert attention is not None
        count = attention.query.blocks
        chosen = tuple(range(count)) if heads is None else tuple(sorted(set(heads)))
        if not set(chosen) <= set(range(count)) or not chosen:
            raise RankriseError(
                f"heads is {list(chosen)}, but {name} has {count}: pass numbers from 0 to {count - 1}."
            )
        group = tuple(attention.group_of_head[head] for head in chosen)
        groups = tuple(dict.fromkeys(group))
        rows = {role: groups if role in ("key", "value") else chosen for role in roles}
        about = {
            "name": name,
            "heads": count,
            "tracked_heads": list(chosen),
            "groups": list(group),
            "d_model": attention.query.weight.shape[1],
            "d_head": attention.query.width,
            "notes": list(dict.fromkeys(attention.notes)),
        }
        read = partial(_read_layer, rows=rows)
        yield Unit(name, paths[module], module, read, roles, chosen, group, about)


def _read_layer(module: nn.Module, rows: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Those rows of each role: views where they follow one another."""
    attention, tensors = recognise(module), Tensors()
    assert attention is not None, "its family was removed while it is tracked"
    for role, chosen in rows.items():
        whole = getattr(attention, role).weight
        if role == "output":
            whole = whole[0].unflatten(0, (attention.query.blocks, -1)).transpose(1, 2)
        first, last = chosen[0], chosen[-1] + 1
        tensors[role] = whole[first:last] if chosen == tuple(range(first, last)) else whole[list(chosen)]
    return tensors


def _matrices(model: nn.Module, patterns: Sequence[str]) -> Iterator[Unit]:
    """Weights with two sizes whose names fit a pattern, with adapters merged, tied ones once; also position
    embeddings [1, tokens, d], and the kernel of a convolution whose patches do not overlap."""
    missing, seen = set(patterns), set[int]()
    inside: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(f"{above}.") for above in inside):
            continue
        whole = is_linear(module) and not isinstance(module, (nn.Sequential, nn.ModuleList))
        names = ["weight"] if whole else [name for name, _ in module.named_parameters(recurse=False)]
        if whole:
            inside.append(path)
        for parameter in names:
            name = plain_name(f"{path}.{parameter}".lstrip("."))
            fitting = {pattern for pattern in patterns if fnmatchcase(name, pattern)}
            if fitting and (whole or _as_matrix(module, parameter) is not None):
                missing -= fitting
                stored = id(module._parameters.get(parameter, module))
                if stored in seen:  # checkpoints have no tensor of the second name
                    continue
                seen.add(stored)
                read = partial(_read_matrix, parameter=None if whole else parameter)
                with shapes_alone():
                    shape = list(read(module)["matrix"].shape)
                yield Unit(name, path, module, read, about={"name": name, "shape": shape})
    if missing:
        raise RankriseError(
            f"matrices has {sorted(missing)[0]!r}, which matches no weight matrix of {type(model).__name__}: "
            "pass patterns such as '*.mlp.*' of names as in model.named_parameters()."
        )


def _as_matrix(module: nn.Module, parameter: str) -> Tensor | None:
    """A parameter as a matrix; None for those that are none."""
    weight = module._parameters[parameter]
    if weight is None or weight.ndim == 2:
        return weight
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and weight.ndim > 2:
        apart = tuple(module.stride) == tuple(module.kernel_size) and module.groups == 1
        return weight.flatten(1) if apart else None
    return weight[0] if weight.ndim == 3 and weight.shape[0] == 1 < weight.shape[1] else None


def _read_matrix(module: nn.Module, parameter: str | None) -> Tensors:
    source = module if parameter is None else _as_matrix(module, parameter)
    assert source is not None
    return {"matrix": linear(source).weight[0].mT}
