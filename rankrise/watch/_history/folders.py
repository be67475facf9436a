"""Find checkpoints on this machine, and tell one from another."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rankrise.foundations.errors import RankriseError
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

# A fingerprint reads a piece at the beginning of each file, where safetensors keep names and places, and
# pieces that are spread over the rest.
PIECE = 2**16
PIECES = 15


@dataclass(frozen=True)
class LocalCheckpoint:
    """A folder or file with weights, which are mapped into memory from where they are."""

    path: Path

    @property
    def name(self) -> str:
        path = self.path.resolve()
        if path.is_dir():
            return path.name
        return path.parent.name if path.name in WHOLE else path.stem

    def key(self) -> str:
        return fingerprint(weight_files(self.path))

    def header(self) -> Checkpoint:
        return Checkpoint.open(self.path)

    def config(self, into: Path) -> Path | None:
        path = (self.path if self.path.is_dir() else self.path.parent) / CONFIG
        return path if path.is_file() else None

    def size(self, wanted: Wanted) -> int:
        header = self.header()
        return sum(header.size(name) for name in wanted(header))

    def fetch(self, wanted: Wanted, into: Path) -> Checkpoint:
        if self.path.is_dir():
            refuse_adapter(self.name, [path.name for path in self.path.iterdir()])
        return self.header()


def local_checkpoints(folder: Path) -> list[LocalCheckpoint]:
    """The folders with weights in a folder, or else its files with weights; for a run, those in its series or
    its checkpoints."""
    folder = folder.expanduser()
    if not folder.is_dir():
        raise RankriseError(
            f"There is no folder {str(folder)!r}: pass a folder of checkpoints, several checkpoints, or "
            "OWNER/NAME of a model on the Hugging Face Hub (where OWNER is not a folder)."
        )
    if has_run(folder):
        for name in (SERIES, CHECKPOINTS):
            if (folder / name).is_dir():
                return local_checkpoints(folder / name)
    found = folders_with_weights(folder) or weights_in(folder)
    below = [] if found else list(dict.fromkeys(path.parent for path in checkpoints_below(folder)))
    if below:
        raise RankriseError(
            f"{folder} has no checkpoints in it, but folders that have some ({named(folder, below)}): pass "
            f"one of those, such as {str(below[0])!r}."
        )
    return [LocalCheckpoint(path) for path in found]


def refuse_adapter(name: str, files: Iterable[str]) -> None:
    """Refuse a checkpoint with an adapter among its files, whose weights alone are not those in use."""
    if ADAPTER_CONFIG in files:
        raise RankriseError(
            f"{name} has a PEFT adapter ({ADAPTER_CONFIG}), which a history does not read: merge it into its "
            "base, or see its change with 'rankrise compare BASE ADAPTER'."
        )


def fingerprint(files: Sequence[Path]) -> str:
    """A checksum of names, sizes and pieces of files, which takes milliseconds for files of any size."""
    digest = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        digest.update(f"{file.name if len(files) > 1 else file.suffix}:{size};".encode())
        with file.open("rb") as opened:
            for piece in range(PIECES + 1):
                opened.seek(max(0, (size - PIECE) * piece // PIECES))
                digest.update(opened.read(PIECE))
    return f"sha256-pieces:{digest.hexdigest()}"
