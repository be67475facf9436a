"""Families for a module of one's own, as code to copy: written for that very module, and tried on it."""

import itertools
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from rankrise.foundations.errors import RankriseError
from rankrise.watch._families import Attention, Read, same_reading
from rankrise.watch._layouts import Layout, layouts
from rankrise.watch._linear import linear, shapes_only
from rankrise.watch._projection import Unreadable
from rankrise.watch._trial import Refuted
from rankrise.watch._twin import Unprovable

MOST_TRIED = 400
"""Layouts that are tried on a forward pass before the search is given up."""


def right_layout(module: nn.Module, probe: Callable[[Read], object]) -> str:
    """The code of the family by which this module works; "" if it is none that is short to write."""
    for layout in itertools.islice(_fitting(module), MOST_TRIED):
        try:
            probe(family(layout))
        except (Refuted, Unprovable, Unreadable, RankriseError):
            continue
        return code(layout, type(module).__name__)
    return ""


def suggestion(module: nn.Module, other_than: Attention | None = None) -> str:
    """The code of a family that fits the names and sizes of this module's layers, to begin with, and reads
    them in another way than that one; "" if none does."""
    for layout in _fitting(module, as_named=True):
        if other_than is None or not same_reading(family(layout)(module), other_than):
            return code(layout, type(module).__name__)
    return ""


def code(layout: Layout, kind: str) -> str:
    """What the user copies."""
    lines = [
        *(["import torch", ""] if any("torch." in line for line in layout) else []),
        "from rankrise import watch",
        "",
        "@watch.add_family",
        "def my_attention(module):",
        f"    if type(module).__name__ == {kind!r}:",
        *(f"        {line}" for line in layout),
    ]
    return "\n".join(lines)


def family(layout: Layout) -> Callable[[Any], Attention]:
    """The same as a function, made of the very lines that are shown. They hold names of the module's own
    attributes, each of which is an identifier, and numbers."""
    space: dict[str, Any] = {"watch": SimpleNamespace(linear=linear, Attention=Attention), "torch": torch}
    exec("\n".join(["def read(module):", *(f"    {line}" for line in layout)]), space)
    return space["read"]


def _fitting(module: nn.Module, as_named: bool = False) -> Iterator[Layout]:
    """The layouts whose sizes fit together."""
    for layout in layouts(module, as_named):
        try:
            with shapes_only():
                family(layout)(module).refuse_misfit()
        except (Unreadable, RankriseError, RuntimeError):
            continue
        yield layout
