"""What layers are called where they are shown: their number, counted from 1, and the short name beside it."""

import re
from collections.abc import Mapping, Sequence

from rankrise.foundations.text import without_middle

SHORTEST = 12
"""Characters of a name that are shown at least."""


def short_names(names: Sequence[str]) -> list[str]:
    """Names of layers without the parts that all of them begin with, but for the last such, and end with.

    >>> short_names(["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"])
    ['layers.0', 'layers.1']
    >>> short_names(["attention"])
    ['attention']
    """
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return list(names)
    shortest = min(map(len, parts))
    begin = next((at for at in range(shortest) if len({one[at] for one in parts}) > 1), shortest - 1)
    end = next((at for at in range(shortest - begin) if len({one[-1 - at] for one in parts}) > 1), 0)
    return [".".join(one[max(0, begin - 1) : len(one) - end]) for one in parts]


def layer_titles(names: Sequence[str]) -> list[str]:
    """Each layer's number; beside it the short name, where names say more than a place in one stack.

    >>> layer_titles(["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"])
    ['layer 1', 'layer 2']
    >>> layer_titles(["encoder.0.self_attn", "decoder.0.self_attn", "decoder.0.cross_attn"])
    ['layer 1 (encoder.0.self_attn)', 'layer 2 (decoder.0.self_attn)', 'layer 3 (decoder.0.cross_attn)']
    """
    alike = len({re.sub(r"\d+", "", name) for name in names}) == 1
    return [
        f"layer {number}" if alike else f"layer {number} ({short})"
        for number, short in enumerate(short_names(names), start=1)
    ]


def fitted_names(names: Mapping[str, str], most: int, ascii_only: bool = False) -> dict[str, str] | None:
    """The same names within so many characters, without their middle; None where that leaves too little of
    them, or two that are alike.

    >>> fitted_names({"a": "1 (decoder.0.self_attn)", "b": "2 (decoder.1.self_attn)"}, most=15)
    {'a': '1 (deco…f_attn)', 'b': '2 (deco…f_attn)'}
    >>> fitted_names({"a": "decoder.0.self_attn", "b": "decoder.1.self_attn"}, most=15)
    """
    cut = {name: without_middle(shown, most) if most >= SHORTEST else shown for name, shown in names.items()}
    if len({*cut.values()}) < len(cut) or any(len(shown) > most for shown in cut.values()):
        return None
    return {name: shown.replace("…", "~") for name, shown in cut.items()} if ascii_only else cut
