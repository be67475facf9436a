"""Damage that no check of types sees: numbers out of all range, rows and tensors that do not fit each other.

Checksums are made to fit again: a reader has nothing to go by but what the numbers say.
"""

import contextlib
import json
import random
import shutil
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from damage import texts_of, write_checked
from safetensors.torch import load_file

WHOLE = (-(2**63), -1, 0, 1, 2, 7, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 10**30)
NUMBERS = (
    -1.7e308, -1e300, -1e38, -1.0, -1e-320, -0.0, 0.0, 5e-324, 1e-300, 1e-160, 1e-40, 0.5, 1.0, 1e16, 1e39,
    1e160, 1e300, 1.7e308, float("nan"), float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "nan", "inf", "1e400", "-1e400", "1" * 5000, "text", "é", "\x1b[2J", "\ud800", "a.b",
    "..", "/", "KQ", "VO", "null", "<script>", "a$\\frac$b", "x" * 1000, "0x10", "1_0", "١",
)  # fmt: skip
"""What is put in the place of something of the same type."""

Step = str | int


def damage_subtly(folder: Path, chance: random.Random) -> None:
    """Change what one file of a folder says, and leave its form as it is."""
    known = {".json": _change_json, ".jsonl": _change_rows, ".safetensors": _change_tensors}
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in known)
    if not files:
        return
    by_kind: dict[str, list[Path]] = {}
    for path in files:
        by_kind.setdefault(path.suffix, []).append(path)
    path = chance.choice(by_kind[chance.choice(list(by_kind))])
    if chance.random() < 0.08:  # another of its kind in its place
        other = chance.choice(by_kind[path.suffix])
        if other != path:
            shutil.copy(other, path)
        return
    with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):  # damaged already
        known[path.suffix](path, chance)


def _change_json(path: Path, chance: random.Random) -> None:
    path.write_text(json.dumps(_changed(json.loads(path.read_text()), chance)))


def _change_rows(path: Path, chance: random.Random) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [{name: value for name, value in row.items() if name != "crc32"} for row in rows]
    if not rows:
        return
    how = chance.random()
    if how < 0.3:
        rows = _rearranged(rows, chance)
    elif how < 0.7:
        state = chance.getstate()
        for place in range(chance.choice((0, 0, 1, len(rows) // 2)), len(rows)):
            chance.setstate(state)  # the same in all of them
            rows[place] = _changed(rows[place], chance)
    else:
        place = chance.randrange(len(rows))
        rows[place] = _changed(rows[place], chance)
    texts = (json.dumps(row, separators=(",", ":"))[:-1] for row in rows)
    path.write_text("".join(f'{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}\n' for text in texts))


def _changed(value: Any, chance: random.Random) -> Any:
    """The same with one part changed, or every part that lies under the same names."""
    places = list(_places(value, ()))
    if not places:
        return value
    chosen = chance.choice(places)
    names = _names(chosen)
    together = [one for one in places if _names(one) == names] if chance.random() < 0.5 else [chosen]
    state = chance.getstate()
    for place in together:
        chance.setstate(state)
        inner = value
        for step in place[:-1]:
            inner = inner[step]
        inner[place[-1]] = _another(inner[place[-1]], chance)
    return value


def _places(value: Any, before: tuple[Step, ...]) -> Iterator[tuple[Step, ...]]:
    """Where every part of a value lies."""
    inside = enumerate(value) if isinstance(value, list) else value.items() if isinstance(value, dict) else ()
    for step, inner in inside:
        yield (*before, step)
        yield from _places(inner, (*before, step))


def _names(place: tuple[Step, ...]) -> tuple[Step | None, ...]:
    return tuple(step if isinstance(step, str) else None for step in place)


def _another(value: Any, chance: random.Random) -> Any:
    """Another value of the same type; now and then, none."""
    if chance.random() < 0.05:
        return None
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*WHOLE, value + 1, value - 1, -value))
    if isinstance(value, float):
        return chance.choice((*NUMBERS, -value, value * 1e10))
    if isinstance(value, str):
        return chance.choice((*TEXTS, value + ".", value[:-1], value.upper()))
    if isinstance(value, list):
        return _rearranged(value, chance)
    if isinstance(value, dict) and value:
        name = chance.choice(list(value))
        rest = {key: inner for key, inner in value.items() if key != name}
        return chance.choice((rest, {}, rest | {f"{name}.other": value[name]}, {name: value[name]}))
    return value


def _rearranged(values: list[Any], chance: random.Random) -> list[Any]:
    """The same items: fewer, more, or in another order."""
    place = chance.randrange(len(values) + 1)
    return chance.choice(
        ([], values[:1], values[:place], values[place:], values[::-1], values * 2, [*values, *values[:1]])
    )


def _change_tensors(path: Path, chance: random.Random) -> None:
    try:
        tensors = load_file(path)
    except Exception:  # damaged already
        return
    texts = texts_of(path)
    if not tensors:
        return
    if texts and chance.random() < 0.2:
        texts[chance.choice(list(texts))] = chance.choice([text for text in TEXTS if text.isprintable()])
    else:
        alike = chance.choice(list(tensors))
        chosen = [name for name in tensors if tensors[name].shape[:1] == tensors[alike].shape[:1]]
        state = chance.getstate()
        for name in chosen if chance.random() < 0.3 else [alike]:
            chance.setstate(state)
            with contextlib.suppress(RuntimeError, IndexError, ValueError):
                tensors[name] = _another_tensor(tensors[name], chance).clone().contiguous()
    write_checked(path, tensors, texts)


def _another_tensor(old: torch.Tensor, chance: random.Random) -> torch.Tensor:
    number = chance.choice((*NUMBERS, 1e20, -1e20, 3e38, 1e5))
    new: list[Callable[[], torch.Tensor]] = [
        lambda: torch.full_like(old, number),
        lambda: _with_one(old, number, chance),
        lambda: _with_one(old, number, chance),
        lambda: old * number,
        lambda: old + number,
        lambda: old.flip(0),
        lambda: old[: chance.choice((1, 2, max(1, len(old) // 2)))],
        lambda: torch.cat([old, old]),
        lambda: torch.cat([old, old[-1:]]),
        lambda: old[..., : max(1, old.shape[-1] // 2)],
        lambda: torch.cat([old, old], dim=-1),
        lambda: old.transpose(-1, -2),
        lambda: old[:1].expand_as(old),
        lambda: old.to(chance.choice((torch.float64, torch.float32, torch.float16, torch.bool, torch.int64))),
        lambda: old.to(torch.float8_e4m3fn),
        lambda: torch.zeros(0, dtype=old.dtype),
    ]
    return chance.choice(new)()


def _with_one(old: torch.Tensor, number: float, chance: random.Random) -> torch.Tensor:
    changed = old.clone().flatten()
    changed[chance.randrange(len(changed))] = number
    return changed.reshape(old.shape)
