"""Checkpoints on this machine: the folders and files of a series, and what tells one from another."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.reading import refuse_special
from rankrise.foundations.spelling import nearest
from rankrise.record.names import CHECKPOINTS, CONFIG, SERIES
from rankrise.record.run_file import has_run
from rankrise.record.weight_folders import (
    WHOLE,
    checkpoints_below,
    folders_with_weights,
    named,
    weights_in,
)
from rankrise.watch._checkpoint import Checkpoint, Wanted, weight_files
from rankrise.watch._lora import ADAPTER_CONFIG

# A fingerprint reads the beginning of each file, where safetensors have names and places, and so many pieces
# spread over the rest.
PIECE = 2**16
PIECES = 15


@dataclass(frozen=True)
class LocalCheckpoint:
    """A folder or file with weights. Tensors are mapped from it, and nothing is copied."""

    path: Path

    @property
    def folder(self) -> Path:
        return self.path if self.path.is_dir() else self.path.parent

    @property
    def name(self) -> str:
        if not self.path.is_file():
            return self.path.resolve().name
        # A file whose name is the same in every checkpoint is told by its folder.
        return self.path.resolve().parent.name if self.path.name in WHOLE else self.path.stem

    def key(self) -> str:
        return fingerprint(weight_files(self.path))

    def header(self) -> Checkpoint:
        return Checkpoint.open(self.path)

    def config(self, into: Path) -> Path | None:
        return self.folder / CONFIG if (self.folder / CONFIG).is_file() else None

    def size(self, wanted: Wanted) -> int:
        header = self.header()
        return sum(header.size(name) for name in wanted(header))

    def fetch(self, wanted: Wanted, into: Path) -> Checkpoint:
        if self.path.is_dir():
            refuse_adapter(self.name, [path.name for path in self.path.iterdir()])
        return self.header()


def local_checkpoints(folder: Path) -> list[LocalCheckpoint]:
    """The checkpoints in a folder: its folders with weights; where there are none, its files with weights. Of
    a run of ours, the series that it kept, or its checkpoints; its own record is not among them."""
    folder = folder.expanduser()
    if folder.is_file():
        raise RankriseError(f"{folder} is one file: pass a folder of checkpoints, or several checkpoints.")
    if not folder.is_dir():
        raise RankriseError(
            f"There is no folder {str(folder)!r}{meant(folder)}: pass a folder of checkpoints, several "
            "checkpoints, or OWNER/NAME of a model on the Hugging Face Hub (where OWNER is not a folder)."
        )
    if has_run(folder):
        own = [folder / name for name in (SERIES, CHECKPOINTS) if (folder / name).is_dir()]
        if own:
            return local_checkpoints(own[0])
    found = folders_with_weights(folder) or weights_in(folder)
    if not found:
        _refuse_series_below(folder)
    return [LocalCheckpoint(path) for path in found]


def _refuse_series_below(folder: Path) -> None:
    """Where checkpoints lie one level too deep: a series is the folder that they are in."""
    below = list(dict.fromkeys(path.parent for path in checkpoints_below(folder)))
    if below:
        raise RankriseError(
            f"{folder} has no checkpoints in it, but folders that have some ({named(folder, below)}): pass "
            f"one of those, such as {str(below[0])!r}."
        )


def refuse_adapters(described: str, found: Sequence[LocalCheckpoint]) -> None:
    """Refuse a series of adapters, as a Trainer with PEFT leaves them, before it is asked what they hold."""
    if found and all((one.folder / ADAPTER_CONFIG).is_file() for one in found):
        raise RankriseError(
            f"{described} holds PEFT adapters, which a history does not read: merge each into its base and "
            f"pass the merged models, or see one with 'rankrise compare BASE {found[-1].folder}'."
        )


def refuse_adapter(name: str, files: Iterable[str]) -> None:
    """Refuse a checkpoint that has an adapter among its files: its weights alone are not those in use."""
    if ADAPTER_CONFIG in files:
        raise RankriseError(
            f"{name} has a PEFT adapter ({ADAPTER_CONFIG}) among its files, which has to be merged into the "
            "weights."
        )


def meant(path: Path) -> str:
    """For a path that does not exist: what lies there under a similar name, as a question."""
    beside = path.parent
    name = nearest(path.name, sorted(one.name for one in beside.iterdir())) if beside.is_dir() else None
    return "" if name is None else f" (did you mean {str(beside / name)!r}?)"


def fingerprint(files: Sequence[Path]) -> str:
    """A checksum of names, sizes and pieces of files: told in milliseconds, whatever their size."""
    digest = hashlib.sha256()
    for file in files:
        refuse_special(file)
        size = file.stat().st_size
        told = f"{file.name if len(files) > 1 else file.suffix}:{size};"
        digest.update(told.encode("utf-8", "surrogateescape"))  # a name may be no text
        with file.open("rb") as opened:
            for piece in range(PIECES + 1):
                opened.seek(max(0, (size - PIECE) * piece // PIECES))
                digest.update(opened.read(PIECE))
    return f"sha256-pieces:{digest.hexdigest()}"
