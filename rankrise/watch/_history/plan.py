"""What a history will read: which checkpoints, since when, how many bytes, and in about what time."""

import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.device import usable
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.passed import typed
from rankrise.record.shapes import LARGEST
from rankrise.watch._history.folders import LocalCheckpoint
from rankrise.watch._history.model import Model, model_of
from rankrise.watch._history.parts import CheckpointPart, parts_of
from rankrise.watch._history.series import Entry, choose, find_series, source_of, told_of
from rankrise.watch._track.measure import measure
from rankrise.watch._track.weights import Choice, Unit

TRIAL = 2.0
"""Seconds after which a trial ends with the part that it is at."""


@dataclass(frozen=True)
class HistoryPlan:
    """A history before it is read. `base` is the checkpoint that changes are measured against, None where it
    is each time the one before."""

    series: str
    checkpoints: tuple[Entry, ...]
    left_out: tuple[str, ...]
    """Names in the series that tell no step."""
    total: int
    """How many checkpoints the series has that tell a step."""
    base: Entry | None
    since: str
    """The same in words; empty where it is the initialisation."""
    notes: tuple[str, ...]
    bytes: int
    """To be read or fetched, taken as for the first checkpoint throughout."""
    seconds: float | None
    """About how long, from a trial on the first checkpoint; None where they are fetched."""
    model: Model = field(repr=False)
    top: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """As `rankrise history --json` prints it."""
        steps = [entry.step for entry in self.checkpoints]
        return {
            "series": self.series,
            "model": self.model.name,
            "checkpoints": [{"step": entry.step, "name": entry.name} for entry in self.checkpoints],
            "gaps": [later - one for one, later in pairwise(steps)],
            "of": self.total,
            "left_out": list(self.left_out),
            "since": "previous" if self.base is None else self.base.name,
            "notes": list(self.notes),
            "bytes": self.bytes,
            "seconds": self.seconds,
            "layers": sum(unit.is_layer for unit in self.model.units),
            "matrices": sum(not unit.is_layer for unit in self.model.units),
        }


@typed
def history_plan(
    series: str | Path | Sequence[str | Path],
    *,
    steps: str | Path | Mapping[str, int] | None = None,
    every: int = 1,
    first: int | None = None,
    last: int | None = None,
    log_spaced: int | None = None,
    base: str | Path = "first",
    products: str | Iterable[str] = ("KQ", "VO"),
    layers: int | str | Iterable[int | str] | None = None,
    heads: int | Iterable[int] | None = None,
    matrices: str | Iterable[str] = (),
    top: int = 8,
    model: nn.Module | None = None,
    device: str | torch.device = "cpu",
) -> HistoryPlan:
    """What `history` will read, with the same arguments; no weights are read but those of a first checkpoint
    on this machine, for a trial of the time.

    >>> history_plan("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: There is no folder 'no/such/folder': pass a folder of checkpoints, several ...
    """
    if not 1 <= top <= LARGEST:
        raise RankriseError(f"top is {top}: pass a number from 1 to {LARGEST}.")
    usable(str(device))
    choice = Choice.of(products, layers, heads, matrices)
    found = find_series(series, steps)
    chosen = choose(found.entries, every, first, last, log_spaced)
    begun = _base(base, found.entries)
    if chosen == (begun or chosen[0],):
        raise RankriseError(
            f"{chosen[0].name} alone is chosen, which changes are measured against: choose others beside it."
        )
    with tempfile.TemporaryDirectory() as scratch:
        read = model_of(chosen[0].source, choice, model, Path(scratch))
        size = chosen[0].source.size(read.wanted)
        with told_of(chosen[0]):
            each = _seconds(read, chosen[0], str(device), top)
    return HistoryPlan(
        series=found.described,
        checkpoints=chosen,
        left_out=found.left_out,
        total=len(found.entries),
        base=begun,
        since=_since(base, begun),
        notes=(*_notes(base, begun), *found.notes),
        bytes=size * (len(chosen) + (begun is not None and begun not in chosen)),
        seconds=None if each is None else each * len(chosen),
        model=read,
        top=top,
        device=str(device),
    )


def _base(base: str | Path, entries: Sequence[Entry]) -> Entry | None:
    if base == "previous":
        return None
    return entries[0] if base == "first" else Entry(0, source_of(base))


def _since(base: str | Path, begun: Entry | None) -> str:
    if begun is None:
        return "the checkpoint before"
    if base != "first":
        return begun.name
    return f"{begun.name} (step {begun.step})" if begun.step > 0 else ""


def _notes(base: str | Path, begun: Entry | None) -> tuple[str, ...]:
    """What has to be said about what changes are measured against."""
    if begun is None:
        return ("each change is since the checkpoint before, not since the initialisation",)
    if base != "first":
        return (f"changes are since {begun.name}, not since the initialisation",)
    if begun.step > 0:
        return (
            f"the series begins at step {begun.step}: changes are since then, not since the initialisation",
        )
    return ()


def _seconds(model: Model, entry: Entry, device: str, top: int) -> float | None:
    """How long a checkpoint on this machine takes, from a trial on the first: its parts are read and measured
    one after another, all or as many as `TRIAL` allows. None of one that is elsewhere: the way is not known.
    """
    if not isinstance(entry.source, LocalCheckpoint):
        return None
    spent, tried = 0.0, 0
    start = time.perf_counter()
    for part in parts_of(model, entry.source.header(), entry.name, device):
        spent += time.perf_counter() - start
        changes = part.changes_since(_elsewhere(part), model.units)
        if not tried:  # once before it counts: a device starts, and libraries are loaded
            measure(changes[:1], top, full=False)
        start = time.perf_counter()
        measure(changes, top, full=False)
        spent += time.perf_counter() - start
        tried += sum(_size(change.unit) for change in changes)
        if spent > TRIAL:
            break
        start = time.perf_counter()
    return spent * sum(map(_size, model.units)) / tried


def _elsewhere(part: CheckpointPart) -> CheckpointPart:
    """Other weights of the same shapes, as alike to these as those of another checkpoint: not parallel, which
    would take longer to measure."""
    rolled = {
        name: {role: tensor.mT.roll(1, -1).mT for role, tensor in tensors.items()}
        for name, tensors in part.weights.items()
    }
    return CheckpointPart(rolled, part.variances)


def _size(unit: Unit) -> int:
    return sum(parameter.numel() for parameter in unit.module.parameters())
