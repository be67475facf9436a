"""What it costs that checkpoints and the record outlast a power cut, and that damage is noticed.

    python benchmarks/durability.py                  # in a temporary folder
    python benchmarks/durability.py --folder runs    # on the disk that matters

End to end: a recipe is trained with syncs and checksums, without them, and without them once more as a
control, in turn and in one process, after a round that does not count. Two things are told:

- the share of a run's time that the functions take, measured in the runs that have them: while training
  waits, and in all, with what goes on beside it on the tracker's own thread;
- the difference to the run without them of the same round, by the clock and in processor time, as a median
  with an interval that holds for any distribution. It has what the first cannot see (caches, other threads).
  The control's difference is nothing but the machine's noise: what is below it cannot be told this way.

A checkpoint: the median seconds of its parts at the paper's size of 230 MB, where writing would be there
anyway and sync and checksum are the price, as a share of the time between two checkpoints of vit-cifar10.
"""

import argparse
import os
import statistics
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from overhead import median_interval
from rankrise.watch._track import begin, jobs

from rankrise.foundations import files
from rankrise.foundations.files import sync, to_json
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.record import checkpoint as checkpoint_file
from rankrise.record import lines, tensors
from rankrise.record.tensors import save, sha256
from rankrise.train import train

BETWEEN_CHECKPOINTS = 494 / 10
"""Seconds of vit-cifar10 on one H200: see the recipe."""

PARTS: dict[str, tuple[Callable[..., Any], Any, list[tuple[Any, str]]]] = {
    "sync": (os.fsync, None, [(files.os, "fsync")]),  # that of the rows is the same function
    "checksums of files": (sha256, "", [(checkpoint_file, "sha256"), (begin, "sha256")]),
    "checksums of tensors": (tensors.checksum, "", [(tensors, "checksum"), (jobs, "checksum")]),
    "checksums of rows": (zlib.crc32, 0, [(lines, "zlib")]),
}
"""What durability adds: the function, what it gives where it is left out, and where it is called."""


@contextmanager
def replaced(by: Callable[[str, Callable[..., Any], Any], Callable[..., Any]]) -> Iterator[None]:
    """Every function of PARTS in another form, for a while."""
    patches = []
    for name, (function, nothing, places) in PARTS.items():
        other: Any = by(name, function, nothing)
        for place, attribute in places:
            if attribute == "zlib":  # which others use too
                other = SimpleNamespace(crc32=other)
            patches.append(patch.object(place, attribute, other))
    for one in patches:
        one.start()
    try:
        yield
    finally:
        for one in patches:
            one.stop()


class Timed:
    """The seconds that the functions take, by the thread that waits for them, and how often."""

    def __init__(self) -> None:
        self.waited, self.beside, self.calls = Counter[str](), Counter[str](), Counter[str]()

    def __call__(self, name: str, function: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                here = threading.current_thread() is threading.main_thread()
                (self.waited if here else self.beside)[name] += time.perf_counter() - start
                self.calls[name] += 1

        return timed


def left_out(name: str, function: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
    """The same without doing anything."""
    return lambda *arguments: nothing


WAYS = ("with", "without", "control")
Runs = dict[str, list[tuple[float, float]]]
"""By way: the seconds of each round's run, by the clock and of the processors."""


def end_to_end(settings: TrainSettings, folder: Path, rounds: int) -> dict[str, Any]:
    """Training in every way, in an order that changes from round to round."""
    runs: Runs = {way: [] for way in WAYS}
    waits, shares, timed = [], [], Timed()
    for number in range(rounds + 1):
        first = number % len(WAYS)
        for way in WAYS[first:] + WAYS[:first]:
            timed = Timed() if way == "with" else timed
            with replaced(timed if way == "with" else left_out):
                start = time.perf_counter(), time.process_time()
                train(settings, folder / f"{way}-{number}")
                taken = time.perf_counter() - start[0], time.process_time() - start[1]
            if number:
                runs[way].append(taken)
            if number and way == "with":
                waits.append(timed.waited.total() / taken[0])
                shares.append((timed.waited + timed.beside).total() / taken[0])
    return {
        "runs": runs,
        "share_that_training_waits": _summary(waits),
        "share_in_all": _summary(shares),
        "difference": _differences(runs, "with"),
        "difference_of_the_control": _differences(runs, "control"),
        "last_run": {
            "calls": dict(timed.calls),
            "waited_seconds": dict(timed.waited),
            "seconds_beside_training": dict(timed.beside),
        },
    }


def _differences(runs: Runs, way: str) -> dict[str, Any]:
    """Of a way to "without", as shares of it, round by round."""
    pairs = list(zip(runs[way], runs["without"], strict=True))
    return {
        name: _summary([one[clock] / other[clock] - 1 for one, other in pairs])
        for clock, name in enumerate(("by_the_clock", "of_the_processors"))
    }


def _summary(values: list[float]) -> dict[str, float]:
    low, high, confidence = median_interval(sorted(values))
    return {"median": statistics.median(values), "low": low, "high": high, "confidence": confidence}


def checkpoint(folder: Path, megabytes: int, repeats: int) -> dict[str, Any]:
    """The parts of one checkpoint, in rounds of all parts in turn."""
    path, weights = folder / "model.safetensors", {"weights": torch.randn(megabytes * 250_000)}
    parts: dict[str, Callable[[], object]] = {
        "writing": lambda: save(path, weights),
        "sync": lambda: (sync(path), sync(folder)),
        "checksum": lambda: sha256(path),
    }
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats):
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(several) for name, several in times.items()}
    price = medians["sync"] + medians["checksum"]
    return {
        "megabytes": megabytes,
        "seconds": medians,
        "share_of_vit_cifar10_on_an_h200": price / BETWEEN_CHECKPOINTS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--recipe", default="vit-digits")
    parser.add_argument("--epochs", type=int, default=10, help="in place of the recipe's")
    parser.add_argument("--rounds", type=int, default=8, help="6 or more, for an interval")
    parser.add_argument("--megabytes", type=int, default=230, help="size of a checkpoint")
    arguments = parser.parse_args()
    settings = read_recipe(arguments.recipe)
    epochs = tuple(epoch for epoch in settings.spectra_epochs if epoch <= arguments.epochs)
    rhythm = settings.measurements * arguments.epochs / settings.epochs
    settings = replace(
        settings,
        epochs=arguments.epochs,
        warm_up_epochs=min(settings.warm_up_epochs, arguments.epochs / 2),
        measurements=max(2, round(rhythm)),
        spectra_epochs=epochs,
    )
    if arguments.folder is not None:
        arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        found = {
            "recipe": arguments.recipe,
            "epochs": arguments.epochs,
            "end_to_end": end_to_end(settings, Path(name), arguments.rounds),
            "checkpoint": checkpoint(Path(name), arguments.megabytes, repeats=5),
        }
    print(to_json(found))


if __name__ == "__main__":
    main()
