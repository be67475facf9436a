"""What tracking costs a training run: the same steps with and without it, in turns, in one process.

    python benchmarks/overhead.py --device cuda      # ViT 6 x 8 x (512, 128), batch 512, bf16, torch.compile
    python benchmarks/overhead.py                    # a small ViT on the CPU

Stable ranks and the 8 leading values every 20 steps, full spectra every 100. A block is 100 steps, one of
full spectra and four of ranks. Plain and tracked blocks come in pairs whose order alternates. The device is
synchronised at the ends of a block only, and a tracked block ends when all it measured is on disk, so that
no work is hidden from the clock. The overhead is the median over the pairs, with a confidence interval that
holds for any distribution (order statistics).

The naive way forms every head's product in the loop and takes torch.linalg.svdvals of its change, on the
schedule of the ranks: every 20 steps.
"""

import argparse
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import ViTConfig, ViTForImageClassification

from rankrise import watch
from rankrise.foundations.files import to_json
from rankrise.watch.types import Layer

OFTEN, SELDOM, TOP = 20, 100, 8
PATIENCE = 8.0
"""Seconds given to the naive way."""


@dataclass(frozen=True)
class Setting:
    """A model and its batch; images are 32 x 32 in patches of 4 x 4."""

    name: str
    layers: int
    heads: int
    width: int
    head_size: int
    batch: int


GPU = Setting("ViT 6 x 8 x (512, 128)", layers=6, heads=8, width=512, head_size=128, batch=512)
CPU = Setting("ViT 4 x 4 x (128, 32)", layers=4, heads=4, width=128, head_size=32, batch=32)


def build(setting: Setting, device: str) -> nn.Module:
    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=setting.width,
        num_hidden_layers=setting.layers,
        num_attention_heads=setting.heads,
        head_dim=setting.head_size,
        intermediate_size=4 * setting.width,
        image_size=32,
        patch_size=4,
        num_labels=10,
    )
    return ViTForImageClassification(config).to(device)


class Training:
    """A loop that never waits for the device; `run` takes steps and gives the seconds."""

    def __init__(self, model: nn.Module, setting: Setting, device: str, compiled: bool) -> None:
        self.device = device
        self.forward: Callable[..., Tensor] = torch.compile(model) if compiled else model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
        generator = torch.Generator().manual_seed(0)
        self.batches = [
            (
                torch.randn(setting.batch, 3, 32, 32, generator=generator).to(device),
                torch.randint(10, (setting.batch,), generator=generator).to(device),
            )
            for _ in range(4)
        ]

    def run(
        self,
        steps: int,
        after: Callable[[int, Tensor], object] = lambda step, loss: None,
        end: Callable[[], object] = lambda: None,
    ) -> float:
        self.synchronise()
        start = time.perf_counter()
        for step in range(steps):
            images, labels = self.batches[step % len(self.batches)]
            with torch.autocast("cuda", torch.bfloat16, enabled=self.device != "cpu"):
                loss = nn.functional.cross_entropy(self.forward(images).logits, labels)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            after(step, loss.detach())
        end()
        self.synchronise()
        return time.perf_counter() - start

    def synchronise(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


class Naive:
    """What everybody writes first: clones of the weights, and svdvals of every formed product."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.initial = [[product.clone() for product in products(layer)] for layer in watch.heads(model)]

    @torch.no_grad()
    def __call__(self, step: int, loss: Tensor) -> None:
        if step % OFTEN == 0:
            for layer, initial in zip(watch.heads(self.model), self.initial, strict=True):
                for now, before in zip(products(layer), initial, strict=True):
                    values = torch.linalg.svdvals(now - before)
                    (values.square().sum(-1) / values[:, 0].square()).tolist()


def products(layer: Layer) -> tuple[Tensor, Tensor]:
    return (layer.key @ layer.query.mT).detach(), (layer.value @ layer.output.mT).detach()


def overhead(
    way: str, plain: list[float], with_it: list[float], waited: list[float]
) -> dict[str, str | float]:
    """One way to measure, over a plain block of `SELDOM` steps: percent with an interval, and seconds."""
    pairs = list(zip(plain, with_it, strict=True))
    percents = sorted(100 * (other / one - 1) for one, other in pairs)
    low, high, confidence = median_interval(percents)
    return {
        "way": way,
        "percent": statistics.median(percents),
        "low": low,
        "high": high,
        "confidence": confidence,
        "seconds": statistics.median(other - one for one, other in pairs),
        "waited_seconds": statistics.median(waited),
        "blocks": len(pairs),
    }


def median_interval(ordered: list[float], wanted: float = 0.95) -> tuple[float, float, float]:
    """The narrowest pair of order statistics that holds the median with at least the wanted confidence, or
    the extremes where there are too few, and that confidence: 1 - 2 P(Binomial(n, 1/2) < k)."""
    size = len(ordered)
    found = (ordered[0], ordered[-1], 1 - 2 * 0.5**size)
    for k in range(2, size // 2 + 1):
        confidence = 1 - 2 * sum(math.comb(size, hits) for hits in range(k)) * 0.5**size
        if confidence >= wanted:
            found = (ordered[k - 1], ordered[size - k], confidence)
    return found


def measure(setting: Setting, device: str, blocks: int, keep: str) -> dict[str, Any]:
    model = build(setting, device)
    training = Training(model, setting, device, compiled=device != "cpu")
    training.run(OFTEN)  # compiles, and settles the memory
    plain, tracked, naive_seconds, waited = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        schedule = watch.Schedule(often=OFTEN, seldom=SELDOM)
        tracker = watch.RankTracker(model, folder, schedule=schedule, top=TOP, keep=keep, strict=True)
        tracker.flush()
        starts = itertools.count(0, SELDOM)

        def tracked_block() -> float:
            first = next(starts)
            return training.run(SELDOM, lambda step, loss: tracker.step(first + step, loss=loss), drain)

        def drain() -> None:
            training.synchronise()
            start = time.perf_counter()
            tracker.flush()
            waited.append(time.perf_counter() - start)

        tracked_block()  # warms up
        waited.clear()
        naive = Naive(model)
        for turn in range(blocks):
            for way in ("plain", "tracked") if turn % 2 else ("tracked", "plain"):
                if way == "tracked":
                    tracked.append(tracked_block())
                else:
                    plain.append(training.run(SELDOM))
            if not naive_seconds or sum(naive_seconds) < PATIENCE:
                naive_seconds.append(training.run(OFTEN, naive))
        tracker.close(finished=False)  # the end is measured otherwise, once more
        run = watch.load(folder)
        ranks, spectra = len(run.measured), len(run.spectra_steps)  # read while the folder is there
    naive_seconds = [block * (SELDOM / OFTEN) for block in naive_seconds]
    return {
        "device": torch.cuda.get_device_name() if device != "cpu" else "CPU",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "model": setting.name,
        "batch": setting.batch,
        "keep": keep,
        "milliseconds_a_step": 1e3 * statistics.median(plain) / SELDOM,
        "ranks_measured": f"{ranks} of {(blocks + 1) * SELDOM // OFTEN}",
        "spectra_measured": f"{spectra} of {blocks + 1}",
        "overheads": [
            overhead("tracker", plain, tracked, waited),
            overhead("svdvals in the loop", plain[: len(naive_seconds)], naive_seconds, [0.0]),
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--blocks", type=int, default=6, help="pairs of blocks of 100 steps")
    parser.add_argument(
        "--keep", choices=["model", "cpu"], default="model", help="where initial weights live"
    )
    arguments = parser.parse_args()
    setting = CPU if arguments.device == "cpu" else GPU
    print(to_json(measure(setting, arguments.device, arguments.blocks, arguments.keep)))


if __name__ == "__main__":
    main()
