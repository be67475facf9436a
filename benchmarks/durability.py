"""What it costs that a checkpoint outlasts a power cut, and that damage to it is noticed.

    python benchmarks/durability.py                  # in a temporary folder
    python benchmarks/durability.py --folder runs    # on the disk that matters

The median seconds of a checkpoint's parts at the paper's size of 230 MB, in rounds of all parts in turn:
writing would be there anyway, sync and checksum are the price, as a share of the time between two checkpoints
of vit-cifar10.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rankrise.foundations.files import sync, to_json
from rankrise.record.folder import save, sha256

BETWEEN_CHECKPOINTS = 494 / 10
"""Seconds of vit-cifar10 on one H200: see the recipe."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--megabytes", type=int, default=230, help="size of a checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path, weights = Path(folder, "model.safetensors"), {"w": torch.randn(asked.megabytes * 250_000)}
        parts: dict[str, Callable[[], object]] = {
            "writing": lambda: save(path, weights),
            "sync": lambda: (sync(path), sync(path.parent)),
            "checksum": lambda: sha256(path),
        }
        seconds: dict[str, list[float]] = {name: [] for name in parts}
        for _ in range(asked.rounds):
            for name, part in parts.items():
                start = time.perf_counter()
                part()
                seconds[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(several) for name, several in seconds.items()}
    price = (medians["sync"] + medians["checksum"]) / BETWEEN_CHECKPOINTS
    print(to_json({"megabytes": asked.megabytes, "seconds": medians, "share_of_vit_cifar10": price}))


if __name__ == "__main__":
    main()
