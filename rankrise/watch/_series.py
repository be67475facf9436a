"""A series of checkpoints, on disk or on the Hugging Face Hub: its steps, and a choice from it."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import (
    CHECKPOINTS,
    CONFIG,
    SERIES,
    WHOLE,
    folders_with_weights,
    has_run,
    weights_in,
)
from rankrise.watch._checkpoint import ask_hub, weight_files

# A fingerprint reads a piece at the beginning of each file, where safetensors keep names and places, and
# pieces that are spread over the rest.
PIECE = 2**16
PIECES = 15
NUMBER = r"(?<!\d[.,])(\d+)(k?)(?![a-z]|[.,]?\d)"


@dataclass(frozen=True)
class LocalCheckpoint:
    """A folder or file with weights, which are mapped into memory from where they are."""

    path: Path
    step: int = 0

    @property
    def name(self) -> str:
        path = self.path.resolve()
        if path.is_dir():
            return path.name
        return path.parent.name if path.name in WHOLE else path.stem

    def key(self) -> str:
        """A checksum of names, sizes and pieces of the files, which takes milliseconds for any size."""
        digest, files = hashlib.sha256(), weight_files(self.path)
        for file in files:
            size = file.stat().st_size
            digest.update(f"{file.name if len(files) > 1 else file.suffix}:{size};".encode())
            with file.open("rb") as opened:
                for piece in range(PIECES + 1):
                    opened.seek(max(0, (size - PIECE) * piece // PIECES))
                    digest.update(opened.read(PIECE))
        return f"sha256-pieces:{digest.hexdigest()}"

    def config(self, into: Path) -> Path | None:
        path = (self.path if self.path.is_dir() else self.path.parent) / CONFIG
        return path if path.is_file() else None

    def fetch(self, into: Path) -> Path:
        return self.path


@dataclass(frozen=True)
class HubRevision:
    """One revision of a model on the Hub, fetched by huggingface_hub, whole."""

    repository: str
    name: str
    commit: str
    step: int = 0

    def key(self) -> str:
        return f"commit:{self.commit}"

    def config(self, into: Path) -> Path | None:
        return next(iter(self._download([CONFIG], into)), None)

    def fetch(self, into: Path) -> Path:
        """Download the files with weights into a folder, chosen as transformers chooses them."""
        for whole in WHOLE:
            stem, suffix = whole.split(".")
            if self._download([whole, f"{stem}-*.{suffix}", f"{whole}.index.json"], into):
                return into
        raise RankriseError(f"{self.repository} at {self.name} has neither {' nor '.join(WHOLE)}.")

    def _download(self, patterns: list[str], into: Path) -> list[Path]:
        what = f"{self.repository} at {self.name}"
        where = {"revision": self.commit, "local_dir": into, "allow_patterns": patterns}
        ask_hub(what, "snapshot_download", self.repository, **where)
        return [path for pattern in patterns for path in into.glob(pattern)]


Entry = LocalCheckpoint | HubRevision
"""One checkpoint of a series."""


def find_series(
    series: str | Path | Sequence[str | Path], steps: str | None
) -> tuple[list[Entry], list[str]]:
    """The checkpoints in a folder, of a list of folders and files, or the revisions of a model on the Hub, in
    the order of their steps; then the names that tell no step."""
    found: Sequence[Entry]
    if not isinstance(series, str | Path):
        found = [source_of(one) for one in series]
    elif _is_on_hub(series):
        found = hub_revisions(str(series))
    else:
        folder = Path(series).expanduser()
        if not folder.is_dir():
            raise RankriseError(f"There is no folder {str(folder)!r} of checkpoints, and no such model.")
        if has_run(folder):
            inside = (folder / name for name in (SERIES, CHECKPOINTS))
            folder = next((one for one in inside if one.is_dir()), folder)
        found = [LocalCheckpoint(path) for path in folders_with_weights(folder) or weights_in(folder)]
    try:
        groups = 1 if steps is None else re.compile(steps).groups
    except re.error:
        groups = 0
    if groups != 1:
        raise RankriseError(f"steps is {steps!r}: pass a pattern with one group around the digits.")
    entries: list[Entry] = []
    left_out = []
    for source in found:
        if (step := step_of(source.name, steps)) is None:
            left_out.append(source.name)
        else:
            entries.append(replace(source, step=step))
    entries.sort(key=lambda entry: entry.step)
    for one, other in pairwise(entries):
        if one.step == other.step:
            raise RankriseError(
                f"{one.name!r} and {other.name!r} are both step {one.step}: pass a pattern as steps."
            )
    if len(entries) < 2:
        names = ", ".join(source.name for source in found[:5]) or "none"
        raise RankriseError(
            f"{series} has fewer than two checkpoints with a step in the name (found: {names}): pass a "
            "longer series, or a pattern as steps."
        )
    return entries, left_out


def step_of(name: str, steps: str | None = None) -> int | None:
    """The step of a checkpoint by a pattern with one group. Without, it is the number
    after the last "step"; or after "checkpoint", "iteration" or "epoch"; or the only number.

    >>> names = ["step512", "checkpoint-500", "stage1-step1000-tokens5B", "epoch=3-step=750", "step1k", "42"]
    >>> [step_of(name) for name in names]
    [512, 500, 1000, 750, 1000, 42]
    >>> [step_of(name) for name in ("main", "seed1-size2", "model-7b", "step=1e3", "step1,000", "epoch_1.5")]
    [None, None, None, None, None, None]
    """
    if steps is not None:
        match = re.search(steps, name)
        return int(match[1]) if match and match[1].isdecimal() else None
    for word in ("steps?", "checkpoint|ckpt", "iteration|iter", "epoch"):
        if re.search(rf"(?:{word})[-_=.]?\d", name, re.IGNORECASE):
            found = re.findall(rf"(?:{word})[-_=.]?{NUMBER}", name, re.IGNORECASE)
            break
    else:
        found = re.findall(NUMBER, name, re.IGNORECASE)
        if len(found) > 1:
            return None
    return int(found[-1][0]) * (1000 if found[-1][1] else 1) if found else None


def source_of(place: str | Path) -> Entry:
    """One checkpoint: a folder, a file, or NAME or NAME@REVISION on the Hub."""
    path = Path(place).expanduser()
    if path.exists():
        return LocalCheckpoint(path)
    repository, _, revision = str(place).partition("@")
    for source in hub_revisions(repository) if _is_on_hub(repository) else []:
        if source.name == (revision or "main"):
            return source
    raise RankriseError(
        f"There is no checkpoint {str(place)!r}: pass a folder, a file, or OWNER/NAME@REVISION on the Hub."
    )


def choose(
    entries: Sequence[Entry], first: int | None = None, last: int | None = None, log_spaced: int | None = None
) -> list[Entry]:
    """Keep steps from `first` to `last`, of these `log_spaced` ones that are about evenly spaced on a
    logarithmic scale. Step 0 and the last one stay.

    >>> entries = [LocalCheckpoint(Path(), step) for step in (0, 1, 2, 4, 8, 16, 32, 64, 128)]
    >>> [entry.step for entry in choose(entries, log_spaced=4)]
    [0, 1, 8, 128]
    """
    low, high = entries[0].step if first is None else first, entries[-1].step if last is None else last
    kept = [entry for entry in entries if low <= entry.step <= high]
    if not kept:
        raise RankriseError(f"No checkpoint has a step from first={low} to last={high}.")
    if log_spaced is None or log_spaced >= len(kept):
        return kept
    if log_spaced < 2:
        raise RankriseError(f"log_spaced is {log_spaced}: pass at least 2.")
    start = [entry for entry in kept if entry.step == 0]
    later = [entry for entry in kept if entry.step > 0]
    steps = numpy.array([entry.step for entry in later])
    wanted = numpy.geomspace(steps[-1], steps[0], log_spaced - len(start))  # a single one is the last
    taken = {int(numpy.abs(numpy.log(steps / aim)).argmin()) for aim in wanted}
    while len(taken) < len(wanted):  # several aims share their nearest step: add the most distant others
        apart = numpy.abs(numpy.log(steps[:, None] / steps[sorted(taken)])).min(1)
        taken.add(int(apart.argmax()))
    return start + [later[place] for place in sorted(taken)]


def hub_revisions(repository: str) -> list[HubRevision]:
    """The branches and tags of a model; a branch hides a tag of its name."""
    refs = ask_hub(f"{repository}, which is not a folder here,", "list_repo_refs", repository)
    commits = {ref.name: ref.target_commit for ref in (*refs.tags, *refs.branches)}
    return [HubRevision(repository, name, commit) for name, commit in commits.items()]


def _is_on_hub(place: str | Path) -> bool:
    """Whether a place is OWNER/NAME, and no folder OWNER is here, in which it may be mistyped."""
    path = Path(place).expanduser()
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(place)) is not None
    return is_name and not path.exists() and not path.parent.is_dir()
