"""The weights of checkpoints, one after another, each in parts: while one is measured, the next is read."""

import shutil
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from rankrise.watch._batches import use_threads
from rankrise.watch._checkpoint import Checkpoint
from rankrise.watch._history.parts import CheckpointPart, parts_of
from rankrise.watch._history.plan import HistoryPlan
from rankrise.watch._history.series import Entry, told_of

FETCHED = ".fetched"
"""In the run's folder: a checkpoint that is being fetched or measured."""

Item = TypeVar("Item")


def moments(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Iterator[CheckpointPart]:
    """The weights of the units, in parts and in their order, of one checkpoint after another.

    A part is read while the one before is measured, and a checkpoint is fetched while the one before is read.
    """
    return _one_ahead(_parts(plan, folder, entries))


def _parts(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Generator[CheckpointPart]:
    for entry, checkpoint in zip(entries, _fetched(plan, folder, entries), strict=True):
        with told_of(entry):
            yield from parts_of(plan.model, checkpoint, entry.name, plan.device)


def _one_ahead(items: Generator[Item]) -> Iterator[Item]:
    """The same items, the next of which is made on a thread of its own."""
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


def _fetched(plan: HistoryPlan, folder: Path, entries: Sequence[Entry]) -> Iterator[Checkpoint]:
    """One checkpoint after another: while one is read, the next is fetched; then the first is removed."""
    with ThreadPoolExecutor(1, "rankrise-fetch") as pool:
        waiting: Future[Checkpoint] | None = None
        for place, _ in enumerate(entries):
            checkpoint = (waiting or pool.submit(_fetch, plan, folder, entries, place)).result()
            following = place + 1 < len(entries)
            waiting = pool.submit(_fetch, plan, folder, entries, place + 1) if following else None
            yield checkpoint
            shutil.rmtree(folder / FETCHED / str(place), ignore_errors=True)


def _fetch(plan: HistoryPlan, folder: Path, entries: Sequence[Entry], place: int) -> Checkpoint:
    with told_of(entries[place]):
        return fetch(plan, entries[place], folder / FETCHED / str(place))


def fetch(plan: HistoryPlan, entry: Entry, into: Path) -> Checkpoint:
    """The tensors that are measured of a checkpoint, whose heads are found as in the others; what is fetched
    for it lies in the folder `into`."""
    into.mkdir(parents=True, exist_ok=True)
    plan.model.refuse_other_heads(entry.source.config(into))
    return entry.source.fetch(plan.model.wanted, into)
