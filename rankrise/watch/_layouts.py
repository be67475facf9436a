"""The layouts that a module's heads could have, by the sizes of its weights and what they are called, as the
lines of code that read them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from rankrise.watch._sources import Source, counts, outputs, sources

Layout = tuple[str, ...]
"""Lines of code that end with `return watch.Attention(...)`."""
ROLES = ("query", "key", "value")

# How several roles, heads and the size of a head lie in the width of one layer, outermost first.
_FUSED = (
    "{whole}.cut({heads}).split({parts})",
    "(part.cut({heads}) for part in {whole}.split({parts}))",
    "{whole}.cut({heads}).split({parts}, interleaved=True)",
    "(part.cut({heads}, interleaved=True) for part in {whole}.split({parts}))",
    "{whole}.cut({heads}, interleaved=True).split({parts}, interleaved=True)",
    "(part.cut({heads}, interleaved=True) for part in {whole}.split({parts}, interleaved=True))",
)
_CUTS = (".cut({heads})", ".cut({heads}, interleaved=True)")


@dataclass(frozen=True)
class _Reading:
    """Lines that make `query`, `key` and `value`, and the sources that they read."""

    lines: Layout
    sources: tuple[Source, ...]
    roles: tuple[str, ...]
    """What each of these sources is read as."""
    further: str = ""
    """More that `watch.Attention` is told."""
    key: str = "key"

    def oddity(self, paths: set[str]) -> tuple[int, int, bool]:
        """How many sources have a name that says something else, how many of these parts are not read, and
        whether only one of keys and values comes from a layer before."""
        odd = sum(not one.may_be(role) for one, role in zip(self.sources, self.roles, strict=True))
        read = {path for one in self.sources for path in one.paths}
        deep = [role for one, role in zip(self.sources, self.roles, strict=True) if one.first]
        return odd, len(paths - read), deep in (["key"], ["value"])


def layouts(module: nn.Module) -> Iterator[Layout]:
    """Every layout, those first that read layers as their names say, and leave the fewest unread."""
    found = sources(module)
    for output in outputs(found):
        inputs = [one for one in found if not set(one.paths) & set(output.paths)]
        whole = [one for one in inputs if one.code]
        paths = {path for one in inputs for path in one.paths}
        for heads, number in counts(module, output.takes):
            readings = [
                *_in_one(whole, heads, number, output.takes),
                *_in_two(whole, heads, output.takes),
                *_in_three(whole, heads, number, output.takes),
                *_compressed(inputs, heads, number, output.takes),
            ]
            readings.sort(key=lambda reading: reading.oddity(paths))
            for reading in readings:
                for after in ("", f".from_interleaved({heads})"):
                    last = f"{output.code}{after}{reading.further}"
                    yield (*reading.lines, f"return watch.Attention(query, {reading.key}, value, {last})")


def _in_one(inputs: list[Source], heads: str, number: int, inside: int) -> Iterator[_Reading]:
    """One layer for queries, keys and values."""
    size = inside // number
    for one, order, form in itertools.product(inputs, itertools.permutations(ROLES), _FUSED):
        if one.gives == 3 * inside:
            whole = form.format(whole=one.code, heads=heads, parts=3)
            yield _Reading((f"{', '.join(order)} = {whole}",), (one,), ("fused",))
    for one in inputs:
        groups = (one.gives // size - number) // 2
        if not (0 < groups < number and number % groups == 0 and one.gives == (number + 2 * groups) * size):
            continue
        per = number // groups
        yield _Reading(
            (
                f"query, key, value = {one.code}.cut({groups}).split({per * size}, {size}, {size})",
                f"query = query.cut({per})",
            ),
            (one,),
            ("fused",),
        )
        for further in ("", _turned(number, groups)):
            yield _Reading(
                (
                    f"query, key, value = {one.code}.split({inside}, {groups * size}, {groups * size})",
                    f"query, key, value = query.cut({heads}), key.cut({groups}), value.cut({groups})",
                ),
                (one,),
                ("fused",),
                further,
            )


def _in_two(inputs: list[Source], heads: str, inside: int) -> Iterator[_Reading]:
    """A layer for queries, and one for keys and values."""
    for first, both in itertools.permutations(inputs, 2):
        if first.gives != inside or both.gives != 2 * inside:
            continue
        for cut, pair, form in itertools.product(_CUTS, (("key", "value"), ("value", "key")), _FUSED):
            yield _Reading(
                (
                    f"query = {first.code}{cut.format(heads=heads)}",
                    f"{', '.join(pair)} = {form.format(whole=both.code, heads=heads, parts=2)}",
                ),
                (first, both),
                ("query", "key and value"),
            )


def _in_three(inputs: list[Source], heads: str, number: int, inside: int) -> Iterator[_Reading]:
    """A layer for each role; keys and values may be shared by heads."""
    for three in itertools.permutations(inputs, 3):
        query, key, value = three
        groups = value.gives * number // inside
        fits = groups and number % groups == 0 and key.gives * number == query.gives * groups
        if not fits or key.takes != value.takes:
            continue
        fewer = heads if groups == number else str(groups)
        for cut in _CUTS:
            lines = tuple(
                f"{role} = {one.code}{cut.format(heads=count)}"
                for role, one, count in zip(ROLES, three, (heads, fewer, fewer), strict=True)
            )
            yield _Reading(lines, three, ROLES)
            if 1 < groups < number:
                yield _Reading(lines, three, ROLES, _turned(number, groups))


def _compressed(inputs: list[Source], heads: str, number: int, inside: int) -> Iterator[_Reading]:
    """Keys that have a part of their own in each head, and one that all heads share and positions turn."""
    size = inside // number
    for query, up in itertools.permutations([one for one in inputs if one.gives % number == 0], 2):
        own = up.gives // number - size
        shared = query.gives // number - own
        if not (query.code and up.first and own > 0 and shared > 0):
            continue
        key_and_value = f"key, value = {{up}}.cut({heads}).split({own}, {size})"
        if up.left == shared:
            lines = (
                f"down, shared = {up.first}.split({up.between}, {shared})",
                key_and_value.format(up=f"down.{up.after}"),
            )
            yield _compressed_reading(query, heads, lines, (query, up))
        for apart in inputs:
            if apart.code and apart.gives == shared and not up.left:
                lines = (f"shared = {apart.code}", key_and_value.format(up=up.code))
                yield _compressed_reading(query, heads, lines, (query, up, apart))


def _compressed_reading(query: Source, heads: str, lines: Layout, read: tuple[Source, ...]) -> _Reading:
    lines = (f"query = {query.code}.cut({heads})", *lines)
    return _Reading(
        lines, read, ("query", "key and value", "key")[: len(read)], key="key.with_shared(shared)"
    )


def _turned(heads: int, groups: int) -> str:
    """Heads that share a key are not neighbours, but follow one another at a distance."""
    return f", group=tuple(head % {groups} for head in range({heads}))"
