"""Plan a history: which checkpoints it reads, what it measures, since when, and how many bytes that takes."""

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.device import usable
from rankrise.foundations.errors import RankriseError
from rankrise.watch._history.model import Model, model_of
from rankrise.watch._history.series import Entry, choose, find_series, source_of
from rankrise.watch._units import Choice


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
    model: Model = field(repr=False)
    top: int
    device: str

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and strings, as `rankrise history --json` prints them."""
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
            "layers": sum(unit.is_layer for unit in self.model.units),
            "matrices": sum(not unit.is_layer for unit in self.model.units),
        }


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
    """Plan what `history` will read with the same arguments, without reading any weights.

    >>> history_plan("no/such/folder")
    Traceback (most recent call last):
    rankrise.RankriseError: There is no folder 'no/such/folder': pass a folder of checkpoints, several ...
    """
    if top < 1:
        raise RankriseError(f"top is {top}: pass 1 or more.")
    usable(str(device))
    choice = Choice.of(products, layers, heads, matrices)
    entries, left_out, asides = find_series(series, steps)
    chosen = choose(entries, every, first, last, log_spaced)
    if base == "previous":
        begun, since = None, "the checkpoint before"
        notes = ["each change is since the checkpoint before, not since the initialisation"]
    elif base == "first":
        begun, since, notes = entries[0], "", []
        if begun.step > 0:
            since = f"{begun.name} (step {begun.step})"
            begins = f"the series begins at step {begun.step}"
            notes = [f"{begins}: changes are since then, not since the initialisation"]
    else:
        begun = Entry(0, source_of(base))
        since, notes = begun.name, [f"changes are since {begun.name}, not since the initialisation"]
    if chosen == (begun or chosen[0],):
        raise RankriseError(f"only {chosen[0].name} is chosen, which changes are since: choose others too.")
    with tempfile.TemporaryDirectory() as scratch:
        read = model_of(chosen[0], choice, model, Path(scratch))
        size = chosen[0].source.size(read.wanted)
    return HistoryPlan(
        series=str(series) if isinstance(series, str | Path) else ", ".join(map(str, series)),
        checkpoints=chosen,
        left_out=tuple(left_out),
        total=len(entries),
        base=begun,
        since=since,
        notes=(*notes, *asides),
        bytes=size * (len(chosen) + (begun is not None and begun not in chosen)),
        model=read,
        top=top,
        device=str(device),
    )
