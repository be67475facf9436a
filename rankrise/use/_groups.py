"""Which matrices do what: attention and its queries, keys, values and outputs, and the rest of each layer."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._weights import Matrix
from rankrise.watch._heads import heads
from rankrise.watch._roles import KEY, OUTPUT, QUERY, VALUE

GROUPS = ("all", "attention", "mlp", "q", "k", "v", "o")
"""`all` is every matrix of the layers: not the classifier, nor the output projection to tokens."""

PRODUCTS = {"KQ": ("KQ",), "VO": ("VO",), "KQ and VO": ("KQ", "VO")}
"""Groups of the products of heads."""

TYPED = {"kq": "KQ", "vo": "VO", "kq+vo": "KQ and VO"}
"""How they are typed."""


@dataclass(frozen=True)
class Part:
    """A matrix, or those of its outputs that have one role where several are in one matrix."""

    matrix: Matrix
    start: int
    stop: int
    role: str
    """q, k, v, o, attention (all of them in one) or mlp."""


def parts_of(model: nn.Module, matrices: Sequence[Matrix]) -> list[Part]:
    """The parts of all matrices in the layers of a model: those with a number in their name.

    >>> block = nn.ModuleDict({"fc": nn.Linear(2, 2)})
    >>> model = nn.ModuleDict({"layers": nn.ModuleList([block]), "head": nn.Linear(2, 2)})
    >>> [(part.matrix.name, part.role) for part in parts_of(model, [Matrix("layers.0.fc", 2, 2, False)])]
    [('layers.0.fc', 'mlp')]
    """
    attention = _attention_names(model)
    numbered = [matrix for matrix in matrices if re.search(r"(^|\.)\d+(\.|$)", matrix.name)]
    found: list[Part] = []
    for matrix in numbered or matrices:
        inside = any(matrix.name.startswith(f"{name}.") for name in attention)
        leaf = matrix.name.rpartition(".")[2]
        if not inside:
            found.append(Part(matrix, 0, matrix.out, "mlp"))
        elif matrix.transposed and leaf == "c_attn" and matrix.out == 3 * matrix.into:
            width = matrix.into
            found += [
                Part(matrix, place * width, (place + 1) * width, role) for place, role in enumerate("qkv")
            ]
        else:
            roles = {"q": QUERY, "k": KEY, "v": VALUE, "o": OUTPUT}
            role = next((name for name, pattern in roles.items() if pattern.fullmatch(leaf)), "attention")
            found.append(Part(matrix, 0, matrix.out, role))
    return found


def group_names(names: Iterable[str]) -> list[str]:
    """The groups' own names, each once; a name that is not a group's is refused.

    >>> group_names(["q", "kq+vo", "KQ"])
    ['q', 'KQ and VO', 'KQ']
    """
    found = [TYPED.get(name.lower(), name) for name in names]
    for name in found:
        if name not in GROUPS and name not in PRODUCTS:
            raise RankriseError(
                f"{name!r} is not a group of matrices or of products of heads: pass one of "
                f"{', '.join((*GROUPS, *TYPED))}."
            )
    return list(dict.fromkeys(found))


def group(parts: Sequence[Part], name: str) -> list[Part]:
    """The parts of a group of matrices."""
    if name == "all":
        return list(parts)
    if name == "attention":
        return [part for part in parts if part.role != "mlp"]
    return [part for part in parts if part.role == name]


def _attention_names(model: Any) -> tuple[str, ...]:
    try:
        names: tuple[str, ...] = heads(model).names
    except RankriseError:  # it has no attention that is known
        return ()
    return names
