"""Families for a module of one's own, as code to copy: written for that very module, and tried on it."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch import _roles as roles
from rankrise.watch._families import Attention, Read
from rankrise.watch._probe import Refuted
from rankrise.watch._projection import Projection, Unreadable, is_linear, linear
from rankrise.watch._twin import Unprovable

ROLES = ("query", "key", "value")


@dataclass(frozen=True)
class _Take:
    """One layer, the roles in it in their order, and whether they lie side by side within each head. Of keys
    or values that heads share, `blocks` says how many there are."""

    path: str
    roles: tuple[str, ...]
    per_head: bool = False
    blocks: int = 0

    def code(self, heads: str) -> list[str]:
        names, layer, count = ", ".join(self.roles), _layer(self.path), len(self.roles)
        if count == 1:
            return [f"{names} = {layer}.cut({self.blocks or heads})"]
        if self.per_head:
            return [f"{names} = {layer}.cut({heads}).split({count})"]
        return [f"{names} = (part.cut({heads}) for part in {layer}.split({count}))"]

    def read(self, module: nn.Module, heads: int) -> dict[str, Projection]:
        whole, count = linear(module.get_submodule(self.path)), len(self.roles)
        if self.per_head:
            parts = whole.cut(heads).split(count)
        else:
            parts = tuple(part.cut(self.blocks or heads) for part in whole.split(count))
        return dict(zip(self.roles, parts, strict=True))


@dataclass(frozen=True)
class _Shared:
    """One layer with queries, and with keys and values that heads share: all of each, or group by group."""

    path: str
    heads: int
    groups: int
    size: int
    per_group: bool

    @property
    def widths(self) -> tuple[int, int, int]:
        per, keys = (self.heads // self.groups, 1) if self.per_group else (self.heads, self.groups)
        return per * self.size, keys * self.size, keys * self.size

    def code(self, heads: str) -> list[str]:
        whole = f"{_layer(self.path)}.cut({self.groups})" if self.per_group else _layer(self.path)
        lines = [f"query, key, value = {whole}.split{self.widths}"]
        if self.per_group:
            return [*lines, f"query = query.cut({self.heads // self.groups})"]
        return [
            *lines,
            f"query, key, value = query.cut({heads}), key.cut({self.groups}), value.cut({self.groups})",
        ]

    def read(self, module: nn.Module, heads: int) -> dict[str, Projection]:
        whole = linear(module.get_submodule(self.path))
        query, key, value = (whole.cut(self.groups) if self.per_group else whole).split(*self.widths)
        if self.per_group:
            return {"query": query.cut(self.heads // self.groups), "key": key, "value": value}
        return {"query": query.cut(heads), "key": key.cut(self.groups), "value": value.cut(self.groups)}


@dataclass(frozen=True)
class Candidate:
    """A family for one kind of module: the function, and the same as code."""

    kind: str
    heads: str
    takes: tuple[_Take | _Shared, ...]
    output: str

    @property
    def code(self) -> str:
        lines = [line for take in self.takes for line in take.code(f"module.{self.heads}")]
        lines.append(f"return watch.Attention(query, key, value, {_layer(self.output)})")
        return "\n".join(
            [
                "from rankrise import watch",
                "",
                "@watch.add_family",
                "def my_attention(module):",
                f"    if type(module).__name__ == {self.kind!r}:",
                *(f"        {line}" for line in lines),
            ]
        )

    def read(self, module: nn.Module) -> Attention:
        owner = module
        *above, name = self.heads.split(".")
        for part in above:
            owner = getattr(owner, part)
        found: dict[str, Projection] = {}
        for take in self.takes:
            found |= take.read(module, getattr(owner, name))
        output = linear(module.get_submodule(self.output))
        return Attention(found["query"], found["key"], found["value"], output)


def right_layout(module: nn.Module, probe: Callable[[Read], None]) -> str:
    """The code of the family by which this module works; "" if it is none that is short to write."""
    for candidate in _candidates(module):
        try:
            probe(candidate.read)
        except (Refuted, Unprovable, Unreadable, RankriseError):
            continue
        return candidate.code
    return ""


def suggestion(module: nn.Module) -> str:
    """The code of a family that fits the sizes of this module's layers, to begin with; "" if none does."""
    for candidate in _candidates(module):
        try:
            candidate.read(module)
        except (Unreadable, RankriseError):
            continue
        return candidate.code
    return ""


def _candidates(module: nn.Module) -> Iterator[Candidate]:
    """Families for the layers that the module has; of fused ones per head first, which is not guessed."""
    layers = {path: layer for path, layer in module.named_modules() if path and is_linear(layer)}
    inner = {path for path in layers if any(path.startswith(f"{above}.") for above in layers)}
    layers = {path: layer for path, layer in layers.items() if path not in inner}
    named = [path for path in layers if roles.OUTPUT.fullmatch(path.rpartition(".")[2])]
    outputs = named or list(layers)[-1:]
    if not outputs:
        return
    inputs = [path for path in layers if path != outputs[-1]]
    widths = {path: linear(layers[path]).width for path in inputs}
    inside = linear(layers[outputs[-1]]).weight.shape[1]
    takes: list[tuple[_Take, ...]] = []
    for per_head, order, path in itertools.product((True, False), itertools.permutations(ROLES), inputs):
        takes.append((_Take(path, order, per_head),))
    for per_head, pair, (first, both) in itertools.product(
        (True, False), (("key", "value"), ("value", "key")), itertools.permutations(inputs, 2)
    ):
        if widths[both] == 2 * widths[first]:
            takes.append((_Take(first, ("query",)), _Take(both, pair, per_head)))
    if len(inputs) == 3:
        takes += [
            tuple(_Take(path, (role,)) for path, role in zip(order, ROLES, strict=True))
            for order in itertools.permutations(inputs)
        ]
    for heads, number in _heads(module, inside):
        for one in takes:
            if sum(widths[take.path] for take in one) == 3 * inside:
                yield Candidate(type(module).__name__, heads, one, outputs[-1])
        for shared in _shared(widths, number, inside):
            yield Candidate(type(module).__name__, heads, shared, outputs[-1])


def _shared(widths: dict[str, int], heads: int, inside: int) -> Iterator[tuple[_Take | _Shared, ...]]:
    """Layouts in which several heads share a key and a value, by the widths of the layers."""
    size = inside // heads
    for path, width in widths.items():
        groups = (width // size - heads) // 2
        if 0 < groups < heads and heads % groups == 0 and width == (heads + 2 * groups) * size:
            yield from ((_Shared(path, heads, groups, size, per_group),) for per_group in (True, False))
    for query, key, value in itertools.permutations(widths, 3):
        groups = widths[key] // size
        fits = widths[query] == inside and widths[key] == widths[value] == groups * size
        if fits and 0 < groups < heads and heads % groups == 0:
            yield (
                _Take(query, ("query",)),
                _Take(key, ("key",), blocks=groups),
                _Take(value, ("value",), blocks=groups),
            )


def _layer(path: str) -> str:
    written = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("."))
    return f"watch.linear(module{written})"


def _heads(module: nn.Module, inside: int) -> list[tuple[str, int]]:
    """Where the module says how many heads it has, and how many; where no name says so, every number of its
    own that the width of all heads can be cut into."""
    said = [name for name in vars(module) if "head" in name]
    for name in (*roles.HEADS, *said):
        for above in ("", "config."):
            owner = getattr(module, "config", None) if above else module
            if number := roles.number(owner, (name,)):
                return [(f"{above}{name}", number)] if number > 0 and inside % number == 0 else []
    numbers = {name: roles.number(module, (name,)) for name in vars(module)}
    return [(name, one) for name, one in numbers.items() if one and 0 < one < inside and inside % one == 0]
