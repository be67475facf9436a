"""What it costs that checkpoints and the record outlast a power cut, and that damage is noticed.

    python benchmarks/durability.py                  # in a temporary folder
    python benchmarks/durability.py --folder runs    # on the disk that matters

Medians of the parts of a checkpoint (writing, sync, checksum) and of a tracker's flush (appending two rows;
syncing them and their folder). Writing and appending would be there anyway; the rest is the price.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from rankrise.foundations.files import sync, to_json
from rankrise.foundations.record.lines import Lines
from rankrise.foundations.record.tensors import save, sha256


def medians(parts: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """The median seconds of each part, over rounds of all parts in turn."""
    times: dict[str, list[float]] = {name: [] for name in parts}
    for _ in range(repeats):
        for name, part in parts.items():
            start = time.perf_counter()
            part()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(several) for name, several in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--megabytes", type=int, default=300, help="size of a checkpoint")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        path, tensors = folder / "model.safetensors", {"weights": torch.randn(arguments.megabytes * 250_000)}
        rows = [Lines(folder / "steps.jsonl"), Lines(folder / "ranks.jsonl")]
        found = {
            "megabytes": arguments.megabytes,
            "checkpoint_seconds": medians(
                {
                    "writing": lambda: save(path, tensors),
                    "sync": lambda: (sync(path), sync(folder)),
                    "checksum": lambda: sha256(path),
                },
                arguments.repeats,
            ),
            "flush_seconds": medians(
                {
                    "appending": lambda: [lines.append(1, {"time": 0.0, "loss": 1.0}) for lines in rows],
                    "sync": lambda: (*(lines.sync() for lines in rows), sync(folder)),
                },
                10 * arguments.repeats,
            ),
        }
    print(to_json(found))


if __name__ == "__main__":
    main()
