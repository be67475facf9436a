"""Read checkpoints one after another in parts: while one part is measured, the next is read or fetched."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rankrise.watch._batches import use_threads
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.plan import HistoryPlan
from rankrise.watch._history.series import Entry, naming
from rankrise.watch._measure import UnitChange
from rankrise.watch._rounding import variances
from rankrise.watch._units import Tensors, Unit

FETCHED = ".fetched"
"""In the run's folder: checkpoints that are being fetched or measured."""
# Weights that are read and measured together: small enough to hold two parts, enough work for all cores.
PART_BYTES = 2**27

Item = TypeVar("Item")


@dataclass(frozen=True, eq=False)
class Part:
    """Weights of some units of a checkpoint by unit and role, and the variances of their rounding errors."""

    weights: dict[str, Tensors] = field(default_factory=dict)
    variances: dict[str, Tensors] = field(default_factory=dict)

    def add(self, unit: Unit, tensors: Tensors) -> None:
        self.weights[unit.name] = tensors
        layers = tensors if unit.is_layer else {}
        self.variances[unit.name] = {role: variances(tensor) for role, tensor in layers.items()}

    def changes_since(self, before: "Part", units: Sequence[Unit]) -> list[UnitChange]:
        """The changes of the units that this part has."""
        return [
            UnitChange(
                unit,
                before.weights[unit.name],
                self.weights[unit.name],
                (before.variances[unit.name], self.variances[unit.name]),
            )
            for unit in units
            if unit.name in self.weights
        ]


def whole(parts: Iterator[Part]) -> Part:
    """All parts of a checkpoint in one."""
    joined = Part()
    for part in parts:
        joined.weights.update(part.weights)
        joined.variances.update(part.variances)
    return joined


def read_all(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Iterator[Iterator[Part]]:
    """The parts of each of these checkpoints. Each has to be used up before the next."""
    parts = _one_ahead(_parts(plan, folder, entries))

    def of_next() -> Iterator[Part]:
        missing = len(plan.model.units)
        while missing:  # the next checkpoint must not be waited for
            part = next(parts)
            missing -= len(part.weights)
            yield part

    for _ in entries:
        yield of_next()


def _parts(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Generator[Part]:
    fetched = _one_ahead(
        fetch(plan, entry, folder / FETCHED / str(place)) for place, entry in enumerate(entries)
    )
    for place, (entry, checkpoint) in enumerate(zip(entries, fetched, strict=True)):
        part, size = Part(), 0
        with naming(entry):
            for unit, tensors in plan.model.read(checkpoint, entry.name, plan.device):
                added = sum(tensor.nbytes for tensor in tensors.values())
                if part.weights and size + added > PART_BYTES:
                    yield part
                    part, size = Part(), 0
                part.add(unit, tensors)
                size += added
        yield part
        shutil.rmtree(folder / FETCHED / str(place), ignore_errors=True)


def fetch(plan: HistoryPlan, entry: Entry, into: Path) -> Checkpoint:
    """The tensors that are measured of a checkpoint, which must have the same heads as the others."""
    into.mkdir(parents=True, exist_ok=True)
    with naming(entry):
        plan.model.refuse_other_heads(entry.source.config(into))
        return entry.source.fetch(plan.model.wanted, into)


def _one_ahead(items: Generator[Item]) -> Generator[Item]:
    """The same items, each made on another thread while the one before is used."""
    end = object()
    with ThreadPoolExecutor(1, "rankrise-read", initializer=use_threads, initargs=(1,)) as pool:
        try:
            waiting = pool.submit(next, items, end)
            while (item := waiting.result()) is not end:
                waiting = pool.submit(next, items, end)
                yield item  # type: ignore[misc]
                del item
        finally:
            pool.submit(items.close)
