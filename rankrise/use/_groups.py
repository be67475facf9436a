"""Groups of matrices by what they do: attention with its queries, keys, values and outputs, and the rest."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
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

TYPED = {"kq": "KQ", "vo": "VO", "kq+vo": "KQ and VO"}

ROLES = {"q": QUERY, "k": KEY, "v": VALUE, "o": OUTPUT}


def group_names(names: Iterable[str]) -> list[str]:
    """The groups' own names, each once.

    >>> group_names(["q", "kq+vo", "KQ"])
    ['q', 'KQ and VO', 'KQ']
    """
    found = [TYPED.get(name.lower(), name) for name in names]
    for name in found:
        if name not in GROUPS and name not in PRODUCTS:
            raise RankriseError(f"{name!r} is not a group: pass one of {', '.join((*GROUPS, *TYPED))}.")
    return list(dict.fromkeys(found))


def grouped(model: nn.Module, matrices: Sequence[Matrix]) -> dict[str, list[Matrix]]:
    """The matrices in the numbered layers by group; queries, keys and values in one matrix are taken apart.

    >>> block = nn.ModuleDict({"fc": nn.Linear(2, 2)})
    >>> model = nn.ModuleDict({"layers": nn.ModuleList([block]), "head": nn.Linear(2, 2)})
    >>> groups = grouped(model, [Matrix("layers.0.fc", 2, 2, False), Matrix("head", 2, 2, False)])
    >>> {name: [matrix.name for matrix in found] for name, found in groups.items() if found}
    {'all': ['layers.0.fc'], 'mlp': ['layers.0.fc']}
    """
    attention: Any = ()
    with suppress(RankriseError):  # a model without known attention
        attention = heads(model).names
    groups: dict[str, list[Matrix]] = {name: [] for name in GROUPS}
    numbered = [matrix for matrix in matrices if re.search(r"(^|\.)\d+(\.|$)", matrix.name)]
    for matrix in numbered or matrices:
        leaf = matrix.name.rpartition(".")[2]
        parts = {next((name for name, pattern in ROLES.items() if pattern.fullmatch(leaf)), ""): matrix}
        if not any(matrix.name.startswith(f"{name}.") for name in attention):
            parts = {"mlp": matrix}
        elif matrix.transposed and leaf == "c_attn" and matrix.out == 3 * matrix.into:  # GPT-2
            width = matrix.into
            parts = {
                role: replace(matrix, out=width, first=place * width) for place, role in enumerate("qkv")
            }
        for role, part in parts.items():
            for name in {"all", role, "attention" if role != "mlp" else "mlp"} & set(GROUPS):
                groups[name].append(part)
    return groups
