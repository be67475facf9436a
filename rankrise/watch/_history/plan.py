"""Plan a history: which checkpoints it reads, what it measures, since when, and how many bytes that takes."""

import copy
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise.foundations.device import usable
from rankrise.foundations.errors import RankriseError
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.series import Entry, choose, find_series, source_of
from rankrise.watch._pretrained import Opened, architecture_of
from rankrise.watch._units import Choice, Tensors, Unit, find_units


@dataclass(frozen=True, eq=False)
class Model:
    """The units of a model without weights, and what finds them in its checkpoints."""

    architecture: Opened
    units: Sequence[Unit]
    name: str

    @property
    def products(self) -> list[str]:
        """The products of heads that are measured."""
        return list(dict.fromkeys(product for unit in self.units for product, _ in unit.products))

    def wanted(self, checkpoint: Checkpoint) -> list[str]:
        """The names in a checkpoint of all that the units need."""
        stored = self.architecture.bind(checkpoint).stored
        return list(dict.fromkeys(name for unit in self.units for name in stored(unit.path)))

    def read(
        self, checkpoint: Checkpoint, name: str, device: str | torch.device
    ) -> Iterator[tuple[Unit, Tensors]]:
        """Copies of the weights of one unit after another by role."""
        opened = self.architecture.bind(checkpoint, name)
        for unit in self.units:
            with torch.no_grad(), opened.loaded(unit.module, unit.path):
                weights = unit.fresh(unit.module)
                copied = {role: weight.detach().to(device, copy=True) for role, weight in weights.items()}
            del weights
            for weight in copied.values():  # a sum shows nan and inf in one pass, unless it overflows itself
                if not weight.sum().isfinite() and not weight.isfinite().all():
                    raise RankriseError(f"{unit.name} has values that are not finite.")
            yield unit, copied


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
    entries, left_out = find_series(series, steps)
    chosen = choose(entries, every, first, last, log_spaced)
    begun: Entry | None = entries[0]
    since, note = "", ""
    if base == "previous":
        begun, since = None, "the checkpoint before"
        note = "each change is since the checkpoint before, not since the initialisation"
    elif base != "first":
        begun = Entry(0, source_of(base))
        since, note = begun.name, f"changes are since {begun.name}, not since the initialisation"
    elif entries[0].step > 0:
        since = f"{entries[0].name} (step {entries[0].step})"
        begins = f"the series begins at step {entries[0].step}"
        note = f"{begins}: changes are since then, not since the initialisation"
    if chosen == (begun or chosen[0],):
        raise RankriseError(f"only {chosen[0].name} is chosen, which changes are since: choose others too.")
    with tempfile.TemporaryDirectory() as scratch:
        read = _model(chosen[0], choice, model, Path(scratch))
        size = chosen[0].source.size(read.wanted)
    return HistoryPlan(
        series=str(series) if isinstance(series, str | Path) else ", ".join(map(str, series)),
        checkpoints=chosen,
        left_out=tuple(left_out),
        total=len(entries),
        base=begun,
        since=since,
        notes=(note,) if note else (),
        bytes=size * (len(chosen) + (begun is not None and begun not in chosen)),
        model=read,
        top=top,
        device=str(device),
    )


def _model(entry: Entry, choice: Choice, model: nn.Module | None, scratch: Path) -> Model:
    """The model of a series: the user's, or that of a checkpoint's config.json, or bare matrices."""
    config = None if model is not None else entry.source.config(scratch)
    if model is not None:
        architecture, name = Opened(copy.deepcopy(model).to("meta")), type(model).__name__
    elif config is not None:
        architecture = architecture_of(config)
        name = type(architecture.model).__name__
    elif choice.matrices:
        architecture, name, choice = (
            Opened(nn.Module()),
            "matrices",
            Choice((), matrices=choice.matrices),
        )
        header = entry.source.header()
        for path in header.names:
            if len(header.shape(path)) == 2 and 0 not in header.shape(path):
                owner = architecture.model
                *above, leaf = path.split(".")
                for part in above:
                    if part not in owner._modules:
                        owner.add_module(part, nn.Module())
                    owner = owner.get_submodule(part)
                empty = torch.empty(header.shape(path), device="meta")
                owner.register_parameter(leaf, nn.Parameter(empty, requires_grad=False))
    else:
        raise RankriseError(
            f"{entry.name} has no config.json beside its weights, so its heads cannot be told apart: pass "
            "model=... in Python, or measure plain matrices with --matrices '*'."
        )
    return Model(architecture, find_units(architecture.model, choice), name)
