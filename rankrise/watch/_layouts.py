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
MOST_SOURCES = 256
"""Of which any three are put together."""

_PER_HEAD = "{whole}.cut({heads}).split({parts})"
# How several roles, heads and the size of a head lie in the width of one layer, the most usual first.
_FUSED = (
    "(part.cut({heads}) for part in {whole}.split({parts}))",
    _PER_HEAD,
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


def layouts(module: nn.Module, as_named: bool = False) -> Iterator[Layout]:
    """Every layout, those first that read layers as their names say, and leave the fewest unread; or only
    those that do read them as named."""
    found = sources(module)
    if len(found) > MOST_SOURCES:  # a whole network
        return
    for output in outputs(found):
        inputs = [one for one in found if not set(one.paths) & set(output.paths)]
        whole = [one for one in inputs if one.code]
        paths = {path for one in inputs for path in one.paths}
        for heads, number in counts(module, output.takes):
            readings = [
                *_in_one(whole, heads, number, output.takes),
                *_in_two(whole, heads, number, output.takes),
                *_in_three(whole, heads, number, output.takes),
                *_compressed(inputs, heads, number, output.takes),
            ]
            by_oddity: dict[tuple[int, int, bool], list[_Reading]] = {}
            for reading in readings:
                by_oddity.setdefault(reading.oddity(paths), []).append(reading)
            for oddity in sorted(by_oddity):
                if as_named and oddity[0]:
                    break
                ends = ("", f".from_interleaved({heads})")
                for after, reading in itertools.product(ends, by_oddity[oddity]):
                    last = f"{output.code}{after}{reading.further}"
                    yield (*reading.lines, f"return watch.Attention(query, {reading.key}, value, {last})")


def _in_one(inputs: list[Source], heads: str, number: int, inside: int) -> Iterator[_Reading]:
    """One layer for queries, keys and values, and perhaps a gate; values may have another size than keys."""
    size = inside // number
    for one, order, form in itertools.product(inputs, itertools.permutations(ROLES), _FUSED):
        if one.gives == 3 * inside and (form == _PER_HEAD or not one.is_list):
            whole = form.format(whole=one.code, heads=heads, parts=3)
            yield _Reading((f"{', '.join(order)} = {whole}",), (one,), ("fused",))
    for one, form in itertools.product(inputs, _FUSED[:2]):
        if one.gives == 4 * inside and not one.is_list:
            whole = form.format(whole=one.code, heads=heads, parts=4)
            yield _Reading((f"query, key, value, gate = {whole}",), (one,), ("fused",))
    for one in inputs:
        groups = (one.gives // size - number) // 2
        if not (0 < groups < number and number % groups == 0 and one.gives == (number + 2 * groups) * size):
            continue
        per = number // groups
        shares = {"query": per * size, "key": size, "value": size}
        for order in itertools.permutations(ROLES):
            names, in_group = ", ".join(order), ", ".join(str(shares[role]) for role in order)
            of_all = ", ".join(str(groups * shares[role]) for role in order)
            if groups > 1:
                whole = f"{names} = {one.code}.cut({groups}).split({in_group})"
                yield _Reading((whole, f"query = query.cut({per})"), (one,), ("fused",))
            for further in ("", _turned(number, groups)) if groups > 1 else ("",):
                yield _Reading(
                    (
                        f"{names} = {one.code}.split({of_all})",
                        f"query, key, value = query.cut({heads}), key.cut({groups}), value.cut({groups})",
                    ),
                    (one,),
                    ("fused",),
                    further,
                )
    for one in inputs:
        narrow, rest = divmod(one.gives - inside, 2 * number)
        if not rest and narrow > 0 and narrow != size:
            of_all = f"{one.code}.split({narrow * number}, {narrow * number}, {inside})"
            per_head = f"{one.code}.cut({heads}).split({narrow}, {narrow}, {size})"
            for parts in (f"(part.cut({heads}) for part in {of_all})", per_head):
                yield _Reading((f"query, key, value = {parts}",), (one,), ("fused",))


def _in_two(inputs: list[Source], heads: str, number: int, inside: int) -> Iterator[_Reading]:
    """A layer for one role, and one for the other two; where its name says so, the same for both, of another
    size, or shared by heads."""
    size = inside // number
    for first, both in itertools.permutations(inputs, 2):
        if first.paths == both.paths or first.gives != inside:
            continue
        for role, pair in (("query", ("key", "value")), ("value", ("query", "key"))):
            together = " and ".join(pair)
            named, as_wide = both.is_called(together), both.gives == inside
            if role == "query":
                groups, rest = divmod(both.gives, 2 * size)
            else:
                groups, rest = number, both.gives % (2 * number) or as_wide
            if groups and not rest and number % groups == 0 and (named or both.gives == 2 * inside):
                yield from _of_two(first, both, role, pair, heads, number, groups)
            if named and as_wide:
                alone = f"{role} = {first.code}.cut({heads})"
                lines = (alone, f"{' = '.join(pair)} = {both.code}.cut({heads})")
                yield _Reading(lines, (first, both), (role, together))


def _of_two(
    first: Source, both: Source, role: str, pair: tuple[str, str], heads: str, number: int, groups: int
) -> Iterator[_Reading]:
    """A layer for one role, and one for two, of as many groups as share them."""
    shared = groups < number
    fewer = str(groups) if shared else heads
    for cut, order, form, further in itertools.product(
        _CUTS, (pair, pair[::-1]), _FUSED, ("", _turned(number, groups)) if shared else ("",)
    ):
        lines = (
            f"{role} = {first.code}{cut.format(heads=heads)}",
            f"{', '.join(order)} = {form.format(whole=both.code, heads=fewer, parts=2)}",
        )
        yield _Reading(lines, (first, both), (role, " and ".join(pair)), further)


def _in_three(inputs: list[Source], heads: str, number: int, inside: int) -> Iterator[_Reading]:
    """A layer for each role; keys and values may be shared by heads."""
    for three in itertools.permutations(inputs, 3):
        query, key, value = three
        groups = value.gives * number // inside
        if len({one.paths for one in three}) < 3:
            continue
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
