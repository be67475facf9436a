"""The folder of a run on disk: file names, run.json, rows of JSON, tensors, checkpoints, folders of weights.

Every file name is defined here and nowhere else.
"""

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import finite, is_at, read_json, replacing, sync, write_json

RUN = "run.json"
INITIAL = "initial.safetensors"
STEPS, RANKS = "steps.jsonl", "ranks.jsonl"
TRUNCATION = "truncation.json"
CHECKPOINTS, SERIES = "checkpoint", "series"
WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimiser.safetensors", "state.safetensors"
# A checkpoint's step, run id and checksums; written last.
ABOUT = "state.json"
CONFIG = "config.json"
# What a folder holds when a tracked run was killed before its run.json was written.
BEGUN = {INITIAL, STEPS, RANKS}


def spectra_path(folder: Path, step: int | None) -> Path:
    """The file with the full spectra of a step, or of the initial weights."""
    return folder / "spectra" / f"{'initial' if step is None else f'step-{step:010d}'}.safetensors"


def spectra_steps(folder: Path) -> list[int]:
    """The steps that have full spectra, in order."""
    names = (re.fullmatch(r"step-(\d{10,18})\.safetensors", path.name) for path in folder.glob("spectra/*"))
    return sorted(int(name[1]) for name in names if name)


def tensor_name(layer: str, part: str) -> str:
    """The name of a layer's role or product in a file of tensors; a model that is one layer has no name."""
    return f"{layer}.{part}" if layer else part


# run.json: what a run is.

FORMAT = "rankrise-run/2"
MAKERS = {"toy": "'rankrise toy'", "tracked": "'rankrise train', 'rankrise history' or watch.RankTracker"}


def has_run(folder: str | Path) -> bool:
    """Whether a folder is that of a run."""
    return (Path(folder) / RUN).is_file()


def read_run(folder: str | Path, *kinds: str) -> dict[str, Any]:
    """Read run.json of a run of one of these kinds, "toy" or "tracked"; of either if none is named."""
    path, makers = Path(folder) / RUN, " or ".join(MAKERS[kind] for kind in kinds or MAKERS)
    if not path.is_file():
        why = f"is not a run: it has no {RUN}" if Path(folder).exists() else "does not exist"
        raise RankriseError(f"{folder} {why}: pass a folder written by {makers}.")
    info = read_json(path)
    if info.get("format") != FORMAT or info.get("kind") not in (kinds or MAKERS):
        is_one = f"is a {info.get('kind')} run of format {info.get('format')!r}"
        raise RankriseError(f"{folder} {is_one}: pass a folder written by {makers}.")
    return info


def write_run(folder: Path, kind: str, about: dict[str, Any]) -> None:
    """Replace run.json."""
    write_json(folder / RUN, {"format": FORMAT, "kind": kind} | about)


def read_truncation(folder: Path) -> dict[str, Any] | None:
    """The curves of truncation.json; None if nothing was measured."""
    path = folder / TRUNCATION
    advice = "delete it, and measure again with 'rankrise truncate'"
    return read_json(path, advice) if path.exists() else None


# Rows of JSON, one line each, in the order of their steps: readable at any moment, even after a kill.

# Names that no metric can have.
RESERVED = ("step", "time")


class Lines:
    """A file of rows, open for writing. A torn last line is removed at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: int | None = None  # the step of the row that was appended last
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        self.handle = os.open(path, flags, 0o666)
        whole = sum(map(len, _whole_lines(path)))
        if whole < os.fstat(self.handle).st_size:
            os.ftruncate(self.handle, whole)

    def append(self, step: int, row: dict[str, Any]) -> None:
        """Write a row with one call; if it does not fit on the disk, none of it stays."""
        if self.lost:
            raise RankriseError(self.lost)
        text = json.dumps(finite({"step": step, **row}), separators=(",", ":"), allow_nan=False)
        data, before = f"{text}\n".encode(), os.fstat(self.handle).st_size
        try:
            if os.write(self.handle, data) < len(data):
                raise OSError(f"a row does not fit into {self.path}: is the disk full?")
        except OSError:
            os.ftruncate(self.handle, before)
            raise
        self.last = step

    def cut(self, step: int) -> int:
        """Drop the rows from the first one of `step` or later on. Returns how many."""
        rows = sum(1 for _ in _whole_lines(self.path))
        kept = [len(line) for line, _ in takewhile(lambda row: row[1]["step"] < step, _rows(self.path))]
        os.ftruncate(self.handle, sum(kept))
        self.last = None
        return rows - len(kept)

    def close(self) -> None:
        os.close(self.handle)

    @property
    def lost(self) -> str:
        """Why nothing more can be written; empty while the file is in its place."""
        return "" if is_at(self.path, self.handle) else f"{self.path} was moved, removed or replaced"


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, without a torn last line; none if there is no file."""
    return [row for _, row in _rows(path)] if path.exists() else []


def _rows(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line with its row."""
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
            row.pop("crc32", None)  # ended the rows of earlier versions
        except (ValueError, TypeError, KeyError) as error:
            raise RankriseError(
                f"{path} is damaged in line {number}: delete that line, or restore the file."
            ) from error
        yield line, row


def _whole_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from (line for line in file if line.endswith(b"\n"))


class Record:
    """The rows and spectra of one run, open for writing, until its folder is moved, removed or replaced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()  # the process may change its working directory
        for pattern in (".run-*.json", ".initial-*.safetensors", "spectra/.*-*.safetensors"):
            for path in self.folder.glob(pattern):  # a killed process left these
                path.unlink(missing_ok=True)
        self.steps, self.ranks = Lines(self.folder / STEPS), Lines(self.folder / RANKS)

    @property
    def lost(self) -> str:
        """Why nothing more can be recorded; empty while everything is in its place."""
        return self.steps.lost or self.ranks.lost

    def check(self) -> None:
        if self.lost:
            raise RankriseError(self.lost)

    def has_before(self, step: int) -> bool:
        """Whether there is a row of an earlier step."""
        firsts = (row for lines in (self.steps, self.ranks) for _, row in islice(_rows(lines.path), 1))
        return any(row["step"] < step for row in firsts)

    def add_spectra(self, step: int | None, spectra: Mapping[str, Tensor]) -> None:
        """Write a file of full spectra; None for those of the initial weights."""
        self.check()
        write_tensors(spectra_path(self.folder, step), spectra)

    def cut(self, step: int) -> int:
        """Drop everything from `step` on, because it is run again. Returns how many rows."""
        self.check()
        for later in spectra_steps(self.folder):
            if later >= step:
                spectra_path(self.folder, later).unlink()
        return self.steps.cut(step) + self.ranks.cut(step)

    def sync(self) -> None:
        """Put everything that was written on the disk."""
        self.check()
        os.fsync(self.steps.handle)
        os.fsync(self.ranks.handle)
        sync(self.folder)

    def write_about(self, info: dict[str, Any]) -> None:
        """Replace run.json."""
        self.check()
        write_run(self.folder, "tracked", info)

    def close(self) -> None:
        self.steps.close()
        self.ranks.close()


# Tensors in safetensors files, each whole or absent.


def write_tensors(path: Path, tensors: Mapping[str, Tensor], texts: dict[str, str] | None = None) -> None:
    """Write a safetensors file aside, with `texts` as its metadata, and rename it."""
    plain = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    with replacing(path) as temporary:
        save(temporary, plain, texts)


def save(path: Path, tensors: dict[str, Tensor], texts: dict[str, str] | None = None) -> None:
    """safetensors' `save_file` with the usual permissions (its own are private) and the system's OSError."""
    path.touch()
    rights = path.stat().st_mode
    try:
        save_file(tensors, path, metadata=texts)
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    path.chmod(rights)


def read_tensors(path: Path, advice: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file and its metadata; `advice` says what to do if it is damaged.

    The tensors are copies: safetensors maps its own from the file, and they would change with it.
    """
    try:
        with safe_open(path, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
            return tensors, dict(opened.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise RankriseError(f"{path} is damaged ({first_line(error)}): {advice}.") from error


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over all tensors: for each, a line "name type sizes", then the values."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        kind = str(tensor.dtype).removeprefix("torch.")
        digest.update(f"{name} {kind} {list(tensor.shape)}\n".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """The checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# Checkpoints of training: state.json has the run, the step, and the SHA-256 of the other files.

REMEDY = "restore it, or remove its folder to start from an earlier one or from the beginning"


def checkpoint_path(folder: Path, step: int, kind: str = CHECKPOINTS) -> Path:
    """The folder of one checkpoint, among `CHECKPOINTS` or `SERIES`."""
    return folder / kind / f"step-{step:010d}"


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint of a run; half-removed ones do not count."""
    found = (Path(folder) / CHECKPOINTS).glob(f"step-*/{ABOUT}")
    return max((path.parent for path in found if path.parent.name[5:].isdecimal()), default=None)


def write_about(path: Path, folder: Path, step: int) -> None:
    """Write state.json of a checkpoint of the run in `folder`, after its other files."""
    sums = {name: sha256(path / name) for name in (WEIGHTS, MOMENTS, STATE)}
    run = read_run(folder, "tracked").get("id")
    write_json(path / ABOUT, {"format": "rankrise-checkpoint/2", "step": step, "run": run, "sha256": sums})


def verified_step(path: Path, names: Iterable[str] = (WEIGHTS, MOMENTS, STATE)) -> int:
    """The step of a checkpoint. Refuse one of another run, or whose named files have changed."""
    about, wrong = read_json(path / ABOUT, REMEDY), ""
    for name in names:
        if not (path / name).is_file() or sha256(path / name) != about["sha256"][name]:
            wrong = f"has another {name} than was written"
    if about["run"] != read_run(path.parent.parent, "tracked").get("id"):
        wrong = "is of another run"
    if wrong:
        raise RankriseError(f"the checkpoint {path} {wrong}: {REMEDY}.")
    return int(about["step"])


# Folders of weights that others have written.

SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")
# Names that transformers gives to a model's weights; it prefers the first.
WHOLE = ("model.safetensors", "pytorch_model.bin")


def weights_in(folder: Path) -> list[Path]:
    """The files with weights in a folder, without the initial weights of a run."""
    own = {INITIAL} if has_run(folder) else set()
    files = (path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return sorted(path for path in files if not path.name.startswith(".") and path.name not in own)


def folders_with_weights(folder: Path) -> list[Path]:
    """The folders in a folder that have weights, in the order of the numbers in their names."""
    inside = (path for path in folder.iterdir() if path.is_dir() and path.name != "spectra")
    found = (path for path in inside if not path.name.startswith(".") and weights_in(path))
    return sorted(found, key=lambda path: by_numbers(path.name))


def checkpoints_below(folder: Path) -> list[Path]:
    """The folders with weights one level below a folder, or else two levels below it."""
    found = folders_with_weights(folder) if folder.is_dir() else []
    return found or [path for one in sorted(folder.glob("*/")) for path in folders_with_weights(one)]


def advice_below(folder: Path) -> str:
    """What to pass instead of a folder of checkpoints."""
    found = checkpoints_below(folder)
    return f"; pass one of the {len(found)} that are in it, such as {str(found[-1])!r}" if found else ""


def by_numbers(name: str) -> list[int | str]:
    """A sort key that puts step-9 before step-10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]
