"""What of a module could be read as a projection: its layers, one after another or one for each head, and its
bare weights; each as the code that reads it."""

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from rankrise.watch import _roles as roles
from rankrise.watch._linear import has_one_matrix, has_own_forward, in_a_row, is_linear, linear, shapes_only
from rankrise.watch._projection import Unreadable

_ROLES = {
    "query": roles.QUERY,
    "key": roles.KEY,
    "value": roles.VALUE,
    "key and value": roles.KEY_VALUE,
    "query and key": roles.QUERY_KEY,
    "fused": roles.FUSED,
}


MOST_SINGLE = 32
"""Of which any two are put one after the other; a module that has more has some for each head."""


@dataclass(frozen=True)
class Source:
    """Code for a projection from `takes` to `gives` dimensions, and the parts of the module that are in it.

    Of two layers in a row, `first` is the code of the first, `after` what follows it, `between` the width
    between them, and `left` how much more than that the first one gives.
    """

    code: str
    takes: int
    gives: int
    paths: tuple[str, ...]
    first: str = ""
    after: str = ""
    between: int = 0
    left: int = 0

    def may_be(self, role: str) -> bool:
        """Whether its name says so, or nothing."""
        return self.is_called(role) or not self._said

    def is_called(self, role: str) -> bool:
        """Whether its name says so."""
        return role in self._said

    @property
    def is_list(self) -> bool:
        """Whether it is put together from a layer for each head."""
        return "torch.cat" in self.code

    @property
    def _said(self) -> set[str]:
        name = _name(self).removesuffix("_weight").lower()
        name = re.sub(r"_?(up|b)$|^w", "", name) if self.first else name
        return {one for one, pattern in _ROLES.items() if pattern.fullmatch(name)}


def sources(module: nn.Module) -> list[Source]:
    """All of them."""
    single = [*_lists(module), *_weights(module), *_layers(module)]
    return [*single, *(_in_a_row(module, single) if len(single) <= MOST_SINGLE else ())]


def outputs(found: list[Source]) -> list[Source]:
    """Which of them could be the output projection: by name, or else the last one, in all of its forms and in
    the list that it is in."""
    single = [one for one in found if not one.first]
    named = [one for one in single if roles.OUTPUT.fullmatch(_name(one).removeprefix("w_"))]
    likely = named or [one for one in single if one.may_be("output")]
    return [one for one in single if {*likely[-1].paths} <= {*one.paths}] if likely else []


def counts(module: nn.Module, inside: int) -> list[tuple[str, int]]:
    """Where the module says how many heads it has, and how many; where no name says so, what follows from the
    size of a head, the lengths of its lists and every number of its own that cuts the width of all heads."""
    own = [name for name in vars(module) if name.isidentifier() and name not in roles.SIZES]
    said = [name for name in own if "head" in name]
    for name in (*roles.HEADS, *said):
        for above in ("", "config.", "cfg.", "args."):
            owner = getattr(module, above[:-1], None) if above else module
            if number := roles.number(owner, (name,)):
                return [(f"module.{above}{name}", number)] if number > 0 and inside % number == 0 else []
    lists = [
        (f"len(module.{name})", len(child))
        for name, child in _module_lists(module)
        if getattr(child[0], "out_features", None) != inside  # of all heads, in each of its layers
    ]
    numbers = [(f"module.{name}", roles.number(module, (name,)) or 0) for name in own]
    several = {number: (code, number) for code, number in reversed([*lists, *numbers])}
    sizes = {
        weight.shape[0] for weight in module._parameters.values() if weight is not None and weight.ndim == 3
    }
    several |= {number: (str(number), number) for number in sizes if number not in several}
    if size := roles.head_size(module):
        number = inside // size
        several[number] = several.pop(number, (str(number), number))
    return [one for one in reversed(several.values()) if 0 < one[1] < inside and inside % one[1] == 0]


def _layers(module: nn.Module) -> Iterator[Source]:
    """The linear layers, also inside other parts; one that is there under several names counts once. Of a
    layer of one's own it is not known which side of its weight is which."""
    found: list[str] = []
    for path, layer in module.named_modules():
        inside = any(path.startswith(f"{above}.") for above in found)
        if not path or inside or (code := _attribute(path)) is None:
            continue
        own = has_one_matrix(layer) and (not is_linear(layer) or has_own_forward(layer))
        whole = is_linear(layer) and not any(map(has_own_forward, in_a_row(layer)))
        if not (own or whole) or any(map(_does_more, _around(module, path))):
            continue
        found.append(path)
        if own:
            bias = "" if getattr(layer, "bias", None) is None else f", {code}.bias"
            yield from _either_way(f"{code}.weight", bias, layer.weight, path)
            continue
        with shapes_only():
            try:
                read = linear(layer)
            except Unreadable:
                continue
        yield Source(f"watch.linear({code})", read.weight.shape[1], read.width, (path,))


def _either_way(code: str, bias: str, weight: Tensor, path: str) -> Iterator[Source]:
    """A matrix as (in, out), and as (out, in), which torch calls a weight."""
    one, other = weight.shape
    ways = [
        Source(f"watch.linear({code}.T{bias})", one, other, (path,)),
        Source(f"watch.linear({code}{bias})", other, one, (path,)),
    ]
    yield from reversed(ways) if path.endswith("_weight") else ways


def _around(module: nn.Module, path: str) -> list[nn.Module]:
    """The parts between a module and one in it."""
    parts = path.split(".")
    return [module.get_submodule(".".join(parts[:length])) for length in range(1, len(parts))]


def _does_more(part: nn.Module) -> bool:
    """Whether a part does more than a layer in it and a norm or another shape beside that: it has an
    activation, or a weight of its own."""
    if isinstance(part, nn.Sequential):
        known = (nn.Dropout, nn.Identity, nn.Flatten, nn.Unflatten)
        named = re.compile("norm|rearrange", re.IGNORECASE)
        return not all(
            is_linear(one) or isinstance(one, known) or named.search(type(one).__name__) for one in part
        )
    return any(weight is not None and weight.ndim > 1 for weight in part._parameters.values())


def _weights(module: nn.Module) -> Iterator[Source]:
    """Parameters of its own: (in, out) or (out, in); (heads, d_model, d_head) or (d_model, heads, d_head), of
    an output (heads, d_head, d_model); of all three roles (3, heads, d_model, d_head) or (d_model, 3, heads,
    d_head)."""
    for name, weight in module._parameters.items():
        if weight is None or (code := _attribute(name)) is None:
            continue
        shape = tuple(weight.shape)
        if len(shape) == 2:
            beside = name.removesuffix("weight") + "bias"
            bias = module._parameters.get(beside)
            added = bias is not None and bias.shape == shape[:1]
            yield from _either_way(code, f", module.{beside}" if added else "", weight, name)
        elif len(shape) == 4:
            outer, inner = shape[0] * shape[1] * shape[3], shape[1] * shape[2] * shape[3]
            yield Source(f"watch.linear({code}.mT.flatten(0, 2))", shape[2], outer, (name,))
            yield Source(f"watch.linear({code}.flatten(1).T)", shape[0], inner, (name,))
        elif len(shape) == 3:
            yield Source(f"watch.linear({code}.mT.flatten(0, 1))", shape[1], shape[0] * shape[2], (name,))
            yield Source(f"watch.linear({code}.flatten(1).T)", shape[0], shape[1] * shape[2], (name,))
            yield Source(f"watch.linear({code}.flatten(0, 1).T)", shape[0] * shape[1], shape[2], (name,))
            yield Source(f"watch.linear({code}.flatten(1))", shape[1] * shape[2], shape[0], (name,))


def _lists(module: nn.Module) -> Iterator[Source]:
    """A layer for each head, in lists of layers or in a list of heads that each have some: side by side, or
    one below the other where what they give is added."""
    for name, children in _module_lists(module):
        inner = [path for path, _ in children[0].named_children()]
        for path in [""] if is_linear(children[0]) else inner:
            layers = [child.get_submodule(path) if path else child for child in children]
            linears = [layer for layer in layers if isinstance(layer, nn.Linear)]
            if len(linears) < len(layers):
                continue
            one = f"one.{path}" if path else "one"
            whole = f"torch.cat([{one}.weight for one in module.{name}])"
            if linears[0].bias is not None:
                whole += f", torch.cat([{one}.bias for one in module.{name}])"
            paths = tuple(f"{name}.{place}.{path}".rstrip(".") for place in range(len(layers)))
            paths = paths if path else (*paths, name)
            takes, gives = zip(*((one.in_features, one.out_features) for one in linears), strict=True)
            yield Source(f"watch.linear({whole})", takes[0], sum(gives), paths)
            if all(layer.bias is None for layer in linears):
                below = f"torch.cat([{one}.weight for one in module.{name}], 1)"
                yield Source(f"watch.linear({below})", sum(takes), gives[0], paths)


def _module_lists(module: nn.Module) -> list[tuple[str, list[nn.Module]]]:
    return [
        (name, list(child))
        for name, child in module.named_children()
        if isinstance(child, nn.ModuleList) and name.isidentifier() and len(child) > 1
    ]


def _in_a_row(module: nn.Module, single: list[Source]) -> Iterator[Source]:
    """Two of them one after the other, with the weights of a norm of that width between them or without."""
    norms = [
        (path, part.weight)
        for path, part in module.named_modules()
        if "norm" in type(part).__name__.lower() and isinstance(getattr(part, "weight", None), Tensor)
    ]
    for down, up in itertools.permutations(single, 2):
        if down.paths == up.paths or down.gives < up.takes:
            continue
        fitting = [path for path, weight in norms if weight.shape == (up.takes,)]
        for norm in (*fitting, None):
            scale = "" if norm is None else f", {_attribute(norm)}.weight"
            after = f"then({up.code}{scale})"
            paths = (*down.paths, *up.paths)
            left = down.gives - up.takes
            if not left or up.takes < down.gives < 2 * up.takes:
                yield Source(
                    f"{down.code}.{after}" if not left else "",
                    down.takes,
                    up.gives,
                    paths,
                    down.code,
                    after,
                    up.takes,
                    left,
                )


def _name(source: Source) -> str:
    """What it is called; of a layer in a `Sequential` that is not read whole, what that is called."""
    parts = source.paths[-1].split(".")
    return next((part for part in reversed(parts) if not part.isdigit()), parts[-1])


def _attribute(path: str) -> str | None:
    """The code for a part of the module; None if a name in it is not an identifier."""
    parts = path.split(".")
    if not all(part.isidentifier() or part.isdigit() for part in parts):
        return None
    return "module" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in parts)
