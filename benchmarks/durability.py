"""What it costs that checkpoints and the record outlast a power cut, and that damage is noticed.

    python benchmarks/durability.py                  # in a temporary folder
    python benchmarks/durability.py --folder runs    # on the disk that matters

End to end: a recipe is trained with syncs and checksums and without them, in turn and in one process, after
a round that does not count. The share is that of the time that training itself waits for them, measured in
the runs that have them; those on the tracker's own thread go on beside training, and are told apart. The
difference of the medians with and without is there too, as a check: it is as uncertain as the runs differ.

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

from rankrise.foundations import files
from rankrise.foundations.files import sync, to_json
from rankrise.foundations.record import checkpoint as checkpoint_file
from rankrise.foundations.record import lines, tensors
from rankrise.foundations.record.tensors import save, sha256
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.train import train
from rankrise.watch._track import begin, jobs

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


def end_to_end(settings: TrainSettings, folder: Path, rounds: int) -> dict[str, Any]:
    """Training with and without, in turn."""
    seconds: dict[str, list[float]] = {"with": [], "without": []}
    shares, timed = [], Timed()
    for number in range(rounds + 1):
        order = ("with", "without") if number % 2 else ("without", "with")
        for which in order:
            timed = Timed() if which == "with" else timed
            with replaced(timed if which == "with" else left_out):
                start = time.perf_counter()
                train(settings, folder / f"{which}-{number}")
                taken = time.perf_counter() - start
            if number:
                seconds[which].append(taken)
                shares += [timed.waited.total() / taken] if which == "with" else []
    medians = {which: statistics.median(several) for which, several in seconds.items()}
    return {
        "seconds": seconds,
        "share_that_training_waits": statistics.median(shares),
        "shares": shares,
        "difference_of_medians": medians["with"] / medians["without"] - 1,
        "last_run": {
            "calls": dict(timed.calls),
            "waited_seconds": dict(timed.waited),
            "seconds_beside_training": dict(timed.beside),
        },
    }


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
    parser.add_argument("--epochs", type=int, default=6, help="in place of the recipe's")
    parser.add_argument("--rounds", type=int, default=3)
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
