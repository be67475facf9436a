"""How a file is damaged at random: its bytes, its place, its JSON, its rows or its tensors."""

import contextlib
import json
import os
import random
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rankrise.record.tensors import checksum, sha256

VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, -1e308, 1e-320, "", "nan", "inf", "text",
    "\x1b[2J", "\ud800", "=1+1", "a$\\frac$b", "../..", [], {}, [[]], [None], ["text"], [[1.0, "nan"]],
    {"name": []}, [[[[1]]]],
)  # fmt: skip
NOT_UTF8 = b"\xff\xfe\x00{"
DEEP = b"[" * 100_000


def damage(folder: Path, chance: random.Random) -> None:
    """Damage one file of a folder."""
    path = chance.choice(
        sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    )
    kinds: list[Callable[[Path, random.Random], None]] = [damage_bytes, _replace]
    kinds += [damage_json] * 4 if path.suffix == ".json" else []
    kinds += [_damage_rows] * 4 if path.suffix == ".jsonl" else []
    kinds += [_damage_tensors] * 3 if path.suffix == ".safetensors" else []
    chance.choice(kinds)(path, chance)


def replace_by_special(folder: Path, chance: random.Random) -> None:
    """Put something in a file's place that would never end, or is not there."""
    path = chance.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    path.unlink()
    how = chance.choice(("pipe", "device", "itself", "nowhere"))
    if how == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"device": "/dev/zero", "itself": path.name, "nowhere": "nowhere"}[how])


def damage_bytes(path: Path, chance: random.Random) -> None:
    """Change, remove or add some bytes of a file."""
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(content) + 1)
        content[place : place + chance.choice((0, 1, 1, 1000))] = chance.choice(
            (b"", b"\xff", b"\x00", b"9", b"{", b'"')
        )
    path.write_bytes(content)


def _replace(path: Path, chance: random.Random) -> None:
    """Another file in its place, a folder, or nothing; or a stray one beside it."""
    how = chance.choice(
        ("removed", "folder", "stray", *(b"", b"null", b"[]", b"{}", b"{}\n", NOT_UTF8, DEEP))
    )
    if how == "stray":
        shutil.copy(path, path.with_name(f"step-abc{path.suffix}"))
        return
    path.unlink()
    if how == "folder":
        path.mkdir()
    elif isinstance(how, bytes):
        path.write_bytes(how)


def damage_json(path: Path, chance: random.Random) -> None:
    """Change one part of a JSON file."""
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):  # damaged already
        return
    path.write_text(json.dumps(_damaged(value, chance)))


def _damage_rows(path: Path, chance: random.Random) -> None:
    """Some rows, with checksums that fit: what is behind them is to be reached."""
    try:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    except (ValueError, RecursionError):
        return
    if not rows or not all(isinstance(row, dict) for row in rows):
        return
    rows = [{name: value for name, value in row.items() if name != "crc32"} for row in rows]
    chosen = range(len(rows)) if chance.random() < 0.3 else [chance.randrange(len(rows))]
    state = chance.getstate()
    for place in chosen:
        chance.setstate(state)  # the same damage in all of them
        rows[place] = _damaged(rows[place], chance)
    texts = (json.dumps(row, separators=(",", ":"))[:-1] if isinstance(row, dict) else "" for row in rows)
    path.write_text("".join(f'{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}\n' for text in texts))


def _damaged(value: Any, chance: random.Random) -> Any:
    """A value with one part of it changed, removed or added."""
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        how = chance.random()
        if how < 0.15:
            return {key: item for key, item in value.items() if key != name}
        return value | {name: chance.choice(VALUES) if how < 0.4 else _damaged(value[name], chance)}
    if isinstance(value, list) and value and chance.random() < 0.9:
        place = chance.randrange(len(value))
        changed = chance.choice(
            ([], [chance.choice(VALUES)], [_damaged(value[place], chance)], [value[place]] * 2)
        )
        return [*value[:place], *changed, *value[place + 1 :]]
    return chance.choice(VALUES)


def _damage_tensors(path: Path, chance: random.Random) -> None:
    try:
        tensors = load_file(path)
    except Exception:  # damaged already
        return
    name = chance.choice(list(tensors)) if tensors else ""
    if not name:
        return
    old = tensors[name]
    new: list[Callable[[], torch.Tensor]] = [
        lambda: old.bfloat16(),
        lambda: old.int(),
        lambda: old.flatten(),
        lambda: old[..., :1].contiguous(),
        lambda: old[:0].contiguous(),
        lambda: torch.full_like(old, float("nan")),
        lambda: torch.full_like(old, float("-inf")),
        lambda: -old,
        lambda: torch.zeros_like(old),
        lambda: torch.tensor(1.0),
        lambda: old.unsqueeze(0),
        lambda: old.to(torch.complex64),
    ]
    how = chance.randrange(len(new) + 2)
    if how < len(new):
        with contextlib.suppress(RuntimeError, IndexError):
            tensors[name] = new[how]()
    else:
        tensors.pop(name)
        if how == len(new):
            tensors[f"{name}.other"] = old
    write_checked(path, tensors, texts_of(path) if chance.random() < 0.8 else {})


def write_checked(path: Path, tensors: dict[str, torch.Tensor], texts: dict[str, str]) -> None:
    """Write tensors with a checksum that fits, as one who knows how; also in a checkpoint's state.json."""
    if "sha256" in texts:
        texts["sha256"] = checksum(tensors)
    save_file(tensors, path, metadata=texts)
    about = path.with_name("state.json")
    if about.is_file():
        with contextlib.suppress(ValueError, RecursionError, TypeError, KeyError):  # damaged already
            kept = json.loads(about.read_text())
            kept["sha256"][path.name] = sha256(path)
            about.write_text(json.dumps(kept))


def texts_of(path: Path) -> dict[str, str]:
    """The texts in a file of tensors."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        return dict(opened.metadata() or {})
