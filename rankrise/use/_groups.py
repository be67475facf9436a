"""Groups of matrices by what they do: attention with its queries, keys, values and outputs, and the rest."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.use._weights import Matrix
from rankrise.watch._heads import heads
from rankrise.watch._roles import KEY, OUTPUT, QUERY, VALUE

GROUPS = ("all", "attention", "mlp", "q", "k", "v", "o")
"""`all` is every matrix in the layers, without the classifier or the projection to tokens."""

PRODUCTS = {"KQ": ("KQ",), "VO": ("VO",), "KQ and VO": ("KQ", "VO")}
"""Groups of the products of heads."""

_TYPED = {"kq": "KQ", "vo": "VO", "kq+vo": "KQ and VO"}


@dataclass(frozen=True)
class Part:
    """A matrix, or the outputs of one role where queries, keys and values are one matrix."""

    matrix: Matrix
    start: int
    stop: int
    role: str
    """q, k, v, o, attention (several in one) or mlp."""

    def __str__(self) -> str:
        return f"{self.matrix.name}[{self.start}:{self.stop}]"


def parts_of(model: nn.Module, matrices: Sequence[Matrix]) -> list[Part]:
    """The parts of all matrices in the numbered layers of a model.

    >>> block = nn.ModuleDict({"fc": nn.Linear(2, 2)})
    >>> model = nn.ModuleDict({"layers": nn.ModuleList([block]), "head": nn.Linear(2, 2)})
    >>> [(part.matrix.name, part.role) for part in parts_of(model, [Matrix("layers.0.fc", 2, 2, False)])]
    [('layers.0.fc', 'mlp')]
    """
    attention: Any = ()
    with suppress(RankriseError):  # a model without known attention
        attention = heads(model).names
    numbered = [matrix for matrix in matrices if re.search(r"(^|\.)\d+(\.|$)", matrix.name)]
    found: list[Part] = []
    for matrix in numbered or matrices:
        leaf = matrix.name.rpartition(".")[2]
        if not any(matrix.name.startswith(f"{name}.") for name in attention):
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
    """The groups' own names, each once.

    >>> group_names(["q", "kq+vo", "KQ"])
    ['q', 'KQ and VO', 'KQ']
    """
    found = [_TYPED.get(name.lower(), name) for name in names]
    for name in found:
        if name not in GROUPS and name not in PRODUCTS:
            raise RankriseError(f"{name!r} is not a group: pass one of {', '.join((*GROUPS, *_TYPED))}.")
    return list(dict.fromkeys(found))


def group(parts: Sequence[Part], name: str) -> list[Part]:
    """The parts in a group of matrices."""
    if name == "all":
        return list(parts)
    if name == "attention":
        return [part for part in parts if part.role != "mlp"]
    return [part for part in parts if part.role == name]
