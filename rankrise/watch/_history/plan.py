"""Plan a history: find a series of checkpoints, choose from it, and say what is read and how many bytes."""

import copy
import hashlib
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import nn

from rankrise.foundations.device import usable
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
from rankrise.watch._checkpoint import Checkpoint, weight_files
from rankrise.watch._history.hub import HubRevision, hub_revisions
from rankrise.watch._pretrained import Opened, architecture_of
from rankrise.watch._units import Layers, Unit, find_units

# A fingerprint reads a piece at the beginning of each file, where safetensors keep names and places, and
# pieces that are spread over the rest.
PIECE = 2**16
PIECES = 15
NUMBER = r"(?<!\d[.,])(\d+)(k?)(?![a-z]|[.,]?\d)"


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
class Entry:
    """One checkpoint of a series."""

    step: int
    source: LocalCheckpoint | HubRevision

    @property
    def name(self) -> str:
        return self.source.name


@dataclass(frozen=True)
class HistoryPlan:
    """What a history will read."""

    series: str
    checkpoints: tuple[Entry, ...]
    left_out: tuple[str, ...]
    """Names in the series that tell no step."""
    total: int
    """The number of checkpoints in the series."""
    base: Entry | None
    """The checkpoint that changes are measured against; None if that is always the previous one."""
    since: str
    """The base in words; empty if it is the initialisation."""
    notes: tuple[str, ...]
    bytes: int
    """What is read or fetched, estimated from the first checkpoint."""
    model: str
    architecture: Opened = field(repr=False)
    units: Sequence[Unit] = field(repr=False)
    top: int
    device: str

    @property
    def begun(self) -> Entry:
        """The checkpoint whose weights are the run's initial weights."""
        return self.base or self.checkpoints[0]

    def before(self, entry: Entry) -> Entry:
        """The checkpoint before one of them; the first for itself."""
        return self.checkpoints[max(0, self.checkpoints.index(entry) - 1)]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise history --json` prints them."""
        steps = [entry.step for entry in self.checkpoints]
        return {
            "series": self.series,
            "model": self.model,
            "checkpoints": [{"step": entry.step, "name": entry.name} for entry in self.checkpoints],
            "gaps": [later - one for one, later in pairwise(steps)],
            "of": self.total,
            "left_out": list(self.left_out),
            "since": "previous" if self.base is None else self.base.name,
            "notes": list(self.notes),
            "bytes": self.bytes,
            "layers": sum(unit.is_layer for unit in self.units),
            "matrices": sum(not unit.is_layer for unit in self.units),
        }


def history_plan(
    series: str | Path | Sequence[str | Path],
    *,
    steps: str | Mapping[str, int] | None = None,
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
    base: str | Path = "first",
    products: str | Iterable[str] = ("KQ", "VO"),
    layers: Layers = None,
    heads: int | Iterable[int] | None = None,
    matrices: str | Iterable[str] = (),
    top: int = 8,
    model: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> HistoryPlan:
    """Plan what `history` will read with the same arguments, without reading any weights.

    >>> history_plan("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: There is no folder 'no/such/folder' of checkpoints, and no such model.
    """
    usable(str(device))
    entries, left_out = find_series(series, steps)
    chosen = choose(entries, every, first, last, log_spaced)
    begun: Entry | None = entries[0]
    since = ""
    if base == "previous":
        begun, since = None, "the checkpoint before"
    elif base != "first":
        begun = Entry(0, source_of(base))
        since = begun.name
    elif entries[0].step > 0:
        since = f"{entries[0].name} (step {entries[0].step})"
    if chosen == (begun or chosen[0],):
        raise RankriseError(f"only {chosen[0].name} is chosen, which changes are since: choose others too.")
    opened, name = _architecture(chosen[0], model, matrices)
    if name == "matrices":
        products = ()
    units = find_units(opened.model, products, layers, heads, matrices)
    return HistoryPlan(
        series=str(series) if isinstance(series, str | Path) else ", ".join(map(str, series)),
        checkpoints=chosen,
        left_out=tuple(left_out),
        total=len(entries),
        base=begun,
        since=since,
        notes=(f"changes are since {since}, not since the initialisation",) if since else (),
        bytes=_size(chosen[0], opened, units) * (len(chosen) + (begun is not None and begun not in chosen)),
        model=name,
        architecture=opened,
        units=units,
        top=top,
        device=str(device),
    )


def _architecture(entry: Entry, model: nn.Module | None, matrices: str | Iterable[str]) -> tuple[Opened, str]:
    """The model of a series without weights, and its name: the user's, or that of a checkpoint's config.json,
    or one with nothing but the checkpoint's matrices."""
    if model is not None:
        return Opened(copy.deepcopy(model).to("meta")), type(model).__name__
    with tempfile.TemporaryDirectory() as scratch:
        config = entry.source.config(Path(scratch))
        if config is not None:
            opened = architecture_of(config)
            return opened, type(opened.model).__name__
    if not matrices or isinstance(entry.source, HubRevision):
        raise RankriseError(
            f"{entry.name} has no config.json beside its weights: pass model=... in Python, or measure plain "
            "matrices of checkpoints on disk with matrices='*'."
        )
    checkpoint, root = Checkpoint.open(entry.source.path), nn.Module()
    for path in checkpoint.names:
        shape = checkpoint.shape(path)
        if len(shape) == 2 and all(shape):
            *above, leaf = path.split(".")
            owner: Any = root
            for part in above:
                owner = owner._modules.setdefault(part, nn.Module())
            owner.register_parameter(leaf, nn.Parameter(torch.empty(shape, device="meta"), False))
    return Opened(root), "matrices"


def _size(entry: Entry, opened: Opened, units: Sequence[Unit]) -> int:
    """The bytes that are read of a checkpoint."""
    if isinstance(entry.source, HubRevision):
        return entry.source.size
    checkpoint = Checkpoint.open(entry.source.path)
    stored = opened.bind(checkpoint).stored
    return sum(checkpoint.size(name) for name in {one for unit in units for one in stored(unit.path)})


def step_of(name: str, steps: str | Mapping[str, int] | None = None) -> int | None:
    """The step of a checkpoint by a pattern with one group, or a table of names. Without, it is the number
    after the last "step"; or after "checkpoint", "iteration" or "epoch"; or the only number.

    >>> names = ["step512", "checkpoint-500", "stage1-step1000-tokens5B", "ckpt_12", "step-0000000010"]
    >>> [step_of(name) for name in names]
    [512, 500, 1000, 12, 10]
    >>> step_of("epoch=3-step=750"), step_of("0042"), step_of("step1k"), step_of("step10,lr1")
    (750, 42, 1000, 10)
    >>> [step_of(name) for name in ("main", "seed1-size2", "model-7b", "step=1e3", "step1,000", "epoch_1.5")]
    [None, None, None, None, None, None]
    """
    if isinstance(steps, Mapping):
        return steps.get(name)
    if steps is not None:
        match = re.search(steps, name)
        return int(match[1]) if match else None
    for word in ("steps?", "checkpoint|ckpt", "iteration|iter", "epoch"):
        if re.search(rf"(?:{word})[-_=.]?\d", name, re.IGNORECASE):
            found = re.findall(rf"(?:{word})[-_=.]?{NUMBER}", name, re.IGNORECASE)
            break
    else:
        found = re.findall(NUMBER, name, re.IGNORECASE)
        if len(found) > 1:
            return None
    return int(found[-1][0]) * (1000 if found[-1][1] else 1) if found else None


def find_series(
    series: str | Path | Sequence[str | Path], steps: str | Mapping[str, int] | None
) -> tuple[list[Entry], list[str]]:
    """The checkpoints in a folder, of a list of folders and files, or the revisions of a model on the Hub, in
    the order of their steps; then the names that tell no step."""
    found: Sequence[LocalCheckpoint | HubRevision]
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
    if isinstance(steps, str) and re.compile(steps).groups != 1:
        raise RankriseError(f"steps is {steps!r}: pass a pattern with one group around the digits.")
    numbered = [(step_of(source.name, steps), source) for source in found]
    left_out = [source.name for step, source in numbered if step is None]
    entries = [Entry(step, source) for step, source in numbered if step is not None]
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


def source_of(place: str | Path) -> LocalCheckpoint | HubRevision:
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


def _is_on_hub(place: str | Path) -> bool:
    """Whether a place is OWNER/NAME, and no folder OWNER is here, in which it may be mistyped."""
    path = Path(place).expanduser()
    is_name = re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", str(place)) is not None
    return is_name and not path.exists() and not path.parent.is_dir()


def choose(
    entries: Sequence[Entry],
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
) -> tuple[Entry, ...]:
    """Keep steps from `first` to `last`, then one in `every`, then `log_spaced` ones that are about evenly
    spaced on a logarithmic scale. The first and the last always stay.

    >>> entries = [Entry(step, LocalCheckpoint(Path())) for step in (0, 1, 2, 4, 8, 16, 32, 64, 128)]
    >>> [entry.step for entry in choose(entries, every=3)], [e.step for e in choose(entries, first=2, last=8)]
    ([0, 4, 32, 128], [2, 4, 8])
    >>> [entry.step for entry in choose(entries, log_spaced=4)]
    [0, 1, 8, 128]
    """
    if every < 1 or (log_spaced is not None and log_spaced < 2):
        raise RankriseError(f"every is {every} and log_spaced {log_spaced}: pass at least 1 and 2.")
    low, high = entries[0].step if first is None else first, entries[-1].step if last is None else last
    within = [entry for entry in entries if low <= entry.step <= high]
    if not within:
        raise RankriseError(f"No checkpoint has a step from first={low} to last={high}.")
    kept = within[::every]
    if kept[-1] is not within[-1]:
        kept.append(within[-1])
    if log_spaced is not None and log_spaced < len(kept):
        start = [entry for entry in kept if entry.step == 0]
        later = [entry for entry in kept if entry.step > 0]
        steps = numpy.array([entry.step for entry in later])
        wanted = numpy.geomspace(steps[-1], steps[0], log_spaced - len(start))  # a single one is the last
        taken = {int(numpy.abs(numpy.log(steps / aim)).argmin()) for aim in wanted}
        while len(taken) < len(wanted):  # several aims share their nearest step: add the most distant others
            apart = numpy.abs(numpy.log(steps[:, None] / steps[sorted(taken)])).min(1)
            taken.add(int(apart.argmax()))
        kept = start + [later[place] for place in sorted(taken)]
    return tuple(kept)
