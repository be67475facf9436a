"""Hostile calls: runs, checkpoints, recipes and arguments are damaged at random, and commands called on them.

A command may succeed, or end with one sentence and exit code 2. Everything else is a finding. A call is made
of its seed alone. By hand, for as long as one likes: `python tests/fuzz.py --minutes 60`.
"""

import argparse
import contextlib
import io
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

HERE = Path(__file__).parent
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2**31, 2**63, 10**400, 0.5, -1e308, 1e-320, "", "nan", "inf", "text",
    "\x1b[2J", "\ud800", "=1+1", "a$\\frac$b", "../..", [], {}, [[]], [None], ["text"], [[1.0, "nan"]],
    {"name": []}, [[[[1]]]],
)  # fmt: skip
NOT_UTF8 = b"\xff\xfe\x00{"
DEEP = b"[" * 100_000


@dataclass(frozen=True)
class Finding:
    """A hostile call that ended in neither way: its seed, what was done, and the last frame of ours."""

    seed: int
    call: str
    place: str
    error: str

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.call}\n  {self.place}\n  {self.error}"


class Subjects:
    """What is damaged: small ones of every kind, made once."""

    def __init__(self, folder: Path) -> None:
        import tiny_models
        from small_runs import SETTINGS
        from tracked_runs import train

        from rankrise import use
        from rankrise.toy import run_toy

        self.folder = folder
        train(folder / "tracked", layers=2, steps=30)
        run_toy(folder / "toy", SETTINGS, command="rankrise toy")
        base = tiny_models.made("gpt2")
        base.save_pretrained(folder / "base")
        tiny_models.changed(base).save_pretrained(folder / "tuned")
        use.extract(folder / "base", folder / "tuned", rank=2).save(folder / "adapter")


def hostile_call(subjects: Subjects, seed: int) -> Finding | None:
    """Damage something and call a command on it, all as the seed says."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        words = chance.choices(
            (_on_a_tracked_run, _on_a_toy_run, _on_checkpoints, _on_a_recipe, _on_arguments), (6, 3, 4, 2, 3)
        )[0](subjects.folder, work, chance)
        return call(words, seed)


def call(words: list[str], seed: int) -> Finding | None:
    """Call a command in this process."""
    from rankrise.commands import main

    printed, said = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            main(words)
    except SystemExit as left:
        sentence = said.getvalue().rstrip("\n").rpartition("\n")[2]
        if left.code in (0, None) or (
            left.code == 2 and sentence.startswith("rankrise: ") and sentence[-1] in ".?"
        ):
            return None
        return Finding(seed, " ".join(words), f"exit code {left.code}", sentence)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        ours = [one for one in frames if "/rankrise/" in one.filename and "/tests/" not in one.filename]
        last = ours[-1] if ours else frames[-1]
        return Finding(seed, " ".join(words), f"{last.filename}:{last.lineno} {last.name}", f"{error!r:.200}")
    return None


def _on_a_tracked_run(subjects: Path, work: Path, chance: random.Random) -> list[str]:
    run = work / "run"
    shutil.copytree(subjects / "tracked", run)
    for _ in range(chance.choice((1, 1, 2))):
        _damage(run, chance)
    figure = chance.choice(
        ("training", "stable-rank", "final-spectra", "normalised-spectra", "singular-values")
    )
    return chance.choice(
        (
            ["watch", str(run)],
            ["watch", str(run), "--json"],
            ["claims", str(run), "--judge", "--json"],
            ["claims", str(run)],
            ["report", str(run)],
            ["figures", str(run), "--only", figure],
        )
    )


def _on_a_toy_run(subjects: Path, work: Path, chance: random.Random) -> list[str]:
    run = work / "run"
    shutil.copytree(subjects / "toy", run)
    _damage(run, chance)
    figure = chance.choice(("3", "6", "7", "8", "9", "10", "descent"))
    return chance.choice(
        (["claims", str(run)], ["report", str(run)], ["figures", str(run), "--only", figure])
    )


def _on_checkpoints(subjects: Path, work: Path, chance: random.Random) -> list[str]:
    for name in ("base", "tuned", "adapter"):
        shutil.copytree(subjects / name, work / name)
    which = chance.choice(("base", "tuned", "adapter"))
    _damage(work / which, chance)
    base, tuned, adapter, out = (str(work / name) for name in ("base", "tuned", "adapter", "out"))
    if which == "adapter":
        return chance.choice((["compare", base, adapter], ["shrink", adapter, "--rank", "1", "--out", out]))
    return chance.choice(
        (
            ["compare", base, tuned],
            ["compare", base, tuned, "--json"],
            ["extract", base, tuned, "--rank", "2", "--out", out],
        )
    )


def _on_a_recipe(subjects: Path, work: Path, chance: random.Random) -> list[str]:
    """A recipe whose data are not there, so that a good one ends in a sentence too."""
    recipe = {
        "data": "cifar10",
        "data_folder": str(work / "nowhere"),
        "epochs": 1,
        "seed": 0,
        "batch_size": 4,
    }
    names = [
        *recipe,
        "initialisation_scale",
        "learning_rate",
        "about",
        "top",
        "layers",
        "check_data",
        "nothing",
    ]
    for _ in range(2):
        recipe[chance.choice(names)] = chance.choice(VALUES)
    path = work / "recipe.yaml"
    if "data" not in recipe or recipe["data"] != "cifar10":
        recipe["data_folder"] = str(work / "nowhere")
    path.write_text(json.dumps(recipe))
    if chance.random() < 0.3:
        _damage_bytes(path, chance)
    return ["train", str(path), "--out", str(work / "out"), "--data", "cifar10", "--data_folder", str(work)]


def _on_arguments(subjects: Path, work: Path, chance: random.Random) -> list[str]:
    from rankrise.commands import COMMANDS, command_of
    from rankrise.commands.arguments import arguments_of

    name = chance.choice(
        ("watch", "claims", "figures", "report", "compare", "extract", "shrink", "recipes", "history")
    )
    flags = [one.spelling for one in arguments_of(command_of(name)) if not one.is_word]
    hostile = [str(value) for value in VALUES if not isinstance(value, str)] + [
        "",
        "--",
        "-",
        "-1",
        "a,b",
        "é\x1b",
    ]
    places = [str(work / "nothing"), str(work), "/dev/null", str(work / ("x" * 300)), str(subjects / "tuned")]
    return [name, *chance.choices([*flags, *hostile, *places, *COMMANDS], k=chance.randint(0, 5))]


def _damage(folder: Path, chance: random.Random) -> None:
    """Damage one file of a folder."""
    path = chance.choice(
        sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    )
    kinds: list[Callable[[Path, random.Random], None]] = [_damage_bytes, _replace]
    kinds += [_damage_json] * 4 if path.suffix == ".json" else []
    kinds += [_damage_rows] * 4 if path.suffix == ".jsonl" else []
    kinds += [_damage_tensors] * 3 if path.suffix == ".safetensors" else []
    chance.choice(kinds)(path, chance)


def _damage_bytes(path: Path, chance: random.Random) -> None:
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


def _damage_json(path: Path, chance: random.Random) -> None:
    try:
        value = json.loads(path.read_text())
    except (ValueError, RecursionError):  # damaged already
        return
    path.write_text(json.dumps(_damaged(value, chance)))


def _damage_rows(path: Path, chance: random.Random) -> None:
    """Some rows, without their checksums, as those of earlier versions are."""
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
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


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
    texts = _texts(path) if chance.random() < 0.8 else {}
    save_file(tensors, path, metadata={key: text for key, text in texts.items() if key != "sha256"})


def _texts(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as opened:
        return dict(opened.metadata() or {})


def search(minutes: float, first: int) -> int:
    """Call until the time is over; every new place of an error is printed. Returns how many findings."""
    begun, calls, places = time.monotonic(), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        subjects = Subjects(Path(folder))
        while time.monotonic() - begun < 60 * minutes:
            finding = hostile_call(subjects, first + calls)
            calls += 1
            if finding is not None:
                places[finding.place] += 1
                if places[finding.place] == 1:
                    print(finding, flush=True)
            if calls % 100 == 0:
                rate = calls / (time.monotonic() - begun)
                print(f"{calls} calls, {places.total()} findings, {rate:.1f} calls/s", flush=True)
    print(f"{calls} hostile calls, {places.total()} findings in {len(places)} places.")
    return places.total()


if __name__ == "__main__":
    sys.path += [str(folder) for folder in HERE.rglob("*/")]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0, help="of the first call")
    given = parser.parse_args()
    sys.exit(1 if search(given.minutes, given.seed) else 0)
