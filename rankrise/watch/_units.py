"""What is tracked, and how its weights leave the model: as views if possible, else read afresh."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import tensor_name
from rankrise.watch._ceilings import PRODUCTS, adapter_ceilings
from rankrise.watch._heads import heads, recognise, unwrap
from rankrise.watch._linear import is_linear, linear, plain_name, read_as

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Choice:
    """Which of a model's weights are tracked. Layers are numbers or name patterns, matrices name patterns."""

    products: tuple[str, ...] = ("KQ", "VO")
    layers: tuple[int | str, ...] | None = None
    heads: tuple[int, ...] | None = None
    matrices: tuple[str, ...] = ()

    @classmethod
    def of(cls, *asked: Any) -> "Choice":
        """From what a user passes, in the fields' order: one number or name, or several; None is all.

        >>> Choice.of("KQ", None, range(2), ())
        Choice(products=('KQ',), layers=None, heads=(0, 1), matrices=())
        """
        choice = cls(*((one,) if isinstance(one, (str, int)) else one and tuple(one) for one in asked))
        if not set(choice.products) <= set(PRODUCTS):
            raise RankriseError(f"products is {choice.products}: pass some of {', '.join(PRODUCTS)}.")
        if choice.heads is not None and list(choice.heads) != sorted(set(choice.heads)):
            raise RankriseError(f"heads is {choice.heads}: pass numbers of heads in ascending order.")
        return choice


@dataclass(eq=False)
class Unit:
    """One tracked attention layer, or one other tracked matrix.

    `group[i]` is the number of the key and value that the tracked head `heads[i]` uses.
    """

    name: str
    model: nn.Module
    path: str
    module: nn.Module
    fresh: Callable[[nn.Module], Tensors]
    """Reads key and value [groups, d, d_head], query and output [heads, d, d_head]; or the matrix [m, n]."""
    roles: tuple[str, ...] = ("matrix",)
    heads: tuple[int, ...] = ()
    group: tuple[int, ...] = ()
    all_heads: int = 0
    d_model: int = 0
    d_head: int = 0
    notes: tuple[str, ...] = ()
    ceilings: dict[str, int] = field(default_factory=dict)
    """By product, the highest rank that its change can have; {} if it may be any."""
    _views: Tensors = field(default_factory=dict)
    _addresses: list[int] = field(default_factory=list)

    @property
    def is_layer(self) -> bool:
        return self.roles != ("matrix",)

    def key(self, role: str) -> str:
        """The name of one of its tensors in files."""
        return tensor_name(self.name, role) if self.is_layer else self.name

    @property
    def groups(self) -> tuple[int, ...]:
        """The groups that the tracked heads use."""
        return tuple(dict.fromkeys(self.group))

    @property
    def products(self) -> list[tuple[str, tuple[str, str]]]:
        """Its products, each with its two roles."""
        return [(product, roles) for product, roles in PRODUCTS.items() if set(roles) <= set(self.roles)]

    @property
    def measured(self) -> list[str]:
        """Its products, or "matrix"."""
        return [product for product, _ in self.products] if self.is_layer else ["matrix"]

    @property
    def sharded(self) -> bool:
        """Whether every process has to take part in reading it."""
        return any(isinstance(parameter, DTensor) for parameter in self.module.parameters())

    @property
    def live(self) -> bool:
        """Whether `read` gives views of the model's parameters."""
        return bool(self._views)

    def read(self) -> Tensors:
        """Its weights as they are now. Parameters that have moved are found again, sharded ones gathered,
        adapters merged into a copy."""
        try:  # it may be wrapped in another module meanwhile
            there = self.model.get_submodule(self.path) is self.module
        except AttributeError:
            there = False
        if not there:
            path = next((path for path, one in self.model.named_modules() if one is self.module), None)
            if path is None:
                raise RankriseError(
                    f"{self.name} is no longer a part of the model: the tracker follows the layers of the "
                    "beginning."
                )
            self.path = path
        if self.sharded:
            return self.fresh(self.module)
        parameters = list(self.module.parameters())
        addresses = [parameter.data_ptr() for parameter in parameters]
        if self._views and addresses == self._addresses:  # the views keep their memory from being used again
            return self._views
        tensors = self.fresh(self.module)
        owned = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        live = all(tensor.untyped_storage().data_ptr() in owned for tensor in tensors.values())
        self._views, self._addresses = tensors if live else {}, addresses
        return tensors


def named(units: Sequence[Unit], weights: Mapping[str, Tensors]) -> Tensors:
    """The weights of all units, by their names in files."""
    return {unit.key(role): tensor for unit in units for role, tensor in weights[unit.name].items()}


def find_units(model: nn.Module, choice: Choice) -> list[Unit]:
    """Everything of `model` that `choice` asks for, in the order of its modules. No weight is read yet.

    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=8)
    >>> for unit in find_units(model, Choice(("KQ",), matrices=("linear*",))):
    ...     print(unit.name, {name: tuple(tensor.shape) for name, tensor in unit.read().items()})
    self_attn {'key': (2, 8, 4), 'query': (2, 8, 4)}
    linear1.weight {'matrix': (8, 8)}
    linear2.weight {'matrix': (8, 8)}
    """
    found = [*(_layers(model, choice) if choice.products else ()), *_matrices(unwrap(model), choice.matrices)]
    if not found:
        raise RankriseError("products, layers and matrices choose nothing: leave them out, or pass some.")
    return found


def _layers(model: nn.Module, choice: Choice) -> Iterator[Unit]:
    found, root = heads(model), unwrap(model)
    paths = {module: path for path, module in root.named_modules()}
    roles = tuple(role for product in PRODUCTS if product in choice.products for role in PRODUCTS[product])
    names = found.names
    for asked in choice.layers or ():
        if not any(_fits(asked, at, name) for at, name in enumerate(names)):
            raise RankriseError(
                f"layers has {asked!r}, which is not one of the {len(names)} attention layers "
                f"{names[0]} ... {names[-1]}: pass numbers from 0 or patterns of such names."
            )
    for index, (name, module) in enumerate(zip(names, found._modules, strict=True)):
        if choice.layers is not None and not any(_fits(asked, index, name) for asked in choice.layers):
            continue
        with read_as("shapes"):
            attention = recognise(module)
        assert attention is not None
        count = attention.query.blocks
        chosen = tuple(range(count)) if choice.heads is None else choice.heads
        if not set(chosen) <= set(range(count)) or not chosen:
            raise RankriseError(
                f"heads is {list(chosen)}, but {name} has {count}: pass numbers from 0 to {count - 1}."
            )
        group = tuple(attention.group_of_head[head] for head in chosen)
        groups = tuple(dict.fromkeys(group))
        rows = {role: groups if role in ("key", "value") else chosen for role in roles}
        yield Unit(
            name,
            root,
            paths[module],
            module,
            partial(_read_layer, rows=rows),
            roles,
            heads=chosen,
            group=group,
            all_heads=count,
            d_model=attention.query.weight.shape[1],
            d_head=attention.query.width,
            notes=tuple(dict.fromkeys(attention.notes)),
            ceilings=adapter_ceilings(attention),
        )


def _fits(asked: int | str, index: int, name: str) -> bool:
    return fnmatchcase(name, asked) if isinstance(asked, str) else index == asked


def _read_layer(module: nn.Module, rows: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Those rows of each role: views where they follow one another."""
    attention = recognise(module)
    if attention is None:
        raise RankriseError(
            f"{type(module).__name__} is not a known attention any more: keep its family while it is tracked."
        )
    tensors: Tensors = {}
    for role, chosen in rows.items():
        if role == "output":
            whole = attention.output.weight[0].unflatten(0, (attention.query.blocks, -1)).transpose(1, 2)
        else:
            whole = getattr(attention, role).weight
        first, last = chosen[0], chosen[-1] + 1
        together = chosen == tuple(range(first, last))
        tensors[role] = whole[first:last] if together else torch.stack([whole[one] for one in chosen])
    return tensors


def _matrices(model: nn.Module, patterns: Sequence[str]) -> Iterator[Unit]:
    """Weights with two sizes whose names fit a pattern: of layers that `linear` reads (adapters merged), and
    plain ones (see `_as_matrix`)."""
    missing = set(patterns)
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
                read = partial(_read_matrix, parameter=None if whole else parameter)
                yield Unit(name, model, path, module, read)
    if missing:
        raise RankriseError(
            f"matrices has {sorted(missing)[0]!r}, which matches no weight matrix of {type(model).__name__}: "
            "pass patterns such as '*.mlp.*' of names as in model.named_parameters()."
        )


def _as_matrix(module: nn.Module, parameter: str) -> Tensor | None:
    """A parameter of two sizes as it is, position embeddings [1, tokens, d] without their first, and the
    kernel of a convolution whose patches do not overlap, which is a matrix product; None for others."""
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
