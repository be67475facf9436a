"""Training speed of a recipe's model: ours, the eager Hugging Face Trainer, the card's matrix rate.

    python benchmarks/train.py               # the paper's CIFAR model as its recipe has it
    python benchmarks/train.py --recipe gpt2-wikipedia
    python benchmarks/train.py --variants    # ours compiled in every way, with every attention kernel
    python benchmarks/train.py --profile     # where the time of a step goes, kernel by kernel

The data are random images of CIFAR-10's size, or random tokens; each way of training is measured for at most
--seconds after its warm-up, ours also with a tracker that measures as often as the recipe's run does on
average. The Trainer takes the recipe's micro-batches as whole batches. Rates count the operations of the
library's model: 6 a weight and token, and the attention's, of which a causal one needs half.
"""

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from rankrise.train._data.tokens import Tokens
from rankrise.train._kernels import chosen_kernels
from rankrise.train._rate import set_rate
from rankrise.train._sources import DeviceImages
from rankrise.train._token_blocks import TokenBlocks
from timing import synchronise
from torch import Tensor, nn

from rankrise import watch
from rankrise.foundations.files import to_json, write_json
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.train._data.images import ImageData, ImagePart
from rankrise.train._image_classification import ImageClassification
from rankrise.train._language_model import language_model
from rankrise.train._next_token import NextTokenPrediction
from rankrise.train._optimiser import optimiser_of
from rankrise.train._step import compiled, eager_step, graphed
from rankrise.train._task import Task
from rankrise.train._times import Times
from rankrise.train._vision_model import vision_transformer

VOCABULARY = 50257

Row = dict[str, Any]
Data = ImageData | Tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="vit-cifar10", help="a recipe's name or path")
    parser.add_argument("--variants", action="store_true", help="time every way to compile and to attend")
    parser.add_argument("--only", default="", help="with --variants: only those whose name contains this")
    parser.add_argument("--profile", action="store_true", help="print the kernels of a step by their time")
    parser.add_argument("--attention", help="another attention kernel than the recipe's")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest measurement of each")
    parser.add_argument("--examples", type=int, help="images (50000) or blocks of text (21250)")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script without a GPU")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    options = parser.parse_args()

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    settings = read_recipe(options.recipe)
    if options.attention:
        settings = replace(settings, attention=options.attention)
    if options.tiny:
        small = {
            "layers": 2,
            "heads": 2,
            "hidden_size": 32,
            "mlp_size": 32,
            "head_size": 16,
            "batch_size": 32,
            "micro_batch_size": 16,
            "sequence_length": 32,
        }
        settings = replace(settings, **small, compile="none")
    examples = options.examples or (21_250 if settings.is_text else 50_000)
    data = (random_tokens if settings.is_text else random_images)(settings, examples)
    if options.profile:
        profile(settings, data, device)
        return
    rows: list[Row] = []
    wanted = variants(settings) if options.variants else {"ours": settings}
    for name, variant in wanted.items():
        if options.only in name:
            rows.append(timed_ours(name, variant, data, options.seconds, device))
            show(rows[-1])
    if not options.variants:
        rows.append(timed_ours("ours, tracked", settings, data, options.seconds, device, tracked=True))
        show(rows[-1])
        rows.append(timed_trainer(settings, data, options.seconds, device))
        show(rows[-1])
        rate = matrix_rate(device)
        print(f"bf16 matrix product of this machine: {rate:.0f} TFLOP/s")
        for row in rows:
            row["share of matrix rate"] = row["TFLOP/s"] / rate
            row["times the Trainer"] = row["per second"] / rows[-1]["per second"]
    if options.json:
        write_json(options.json, rows)
    print(to_json(rows))


def variants(settings: TrainSettings) -> dict[str, TrainSettings]:
    """Ways to compute the same step."""
    ways: dict[str, TrainSettings] = {}
    kernels = ("cudnn", "flash", "efficient", "math")
    for attention in kernels if settings.is_text else ("short", *kernels):
        ways[f"model, graph, {attention}"] = replace(settings, attention=attention, deterministic=False)
    ways |= {
        "model, graph, deterministic": replace(settings, deterministic=True),
        "model, no graph": replace(settings, cuda_graph=False),
        "not compiled": replace(settings, compile="none"),
        "max-autotune, graph": replace(settings, compile="max-autotune"),
    }
    if settings.is_text:
        for size in (16, 64):
            ways[f"model, graph, micro-batches of {size}"] = replace(settings, micro_batch_size=size)
    else:
        both = replace(settings, compile="max-autotune", attention="short")
        ways["max-autotune, graph, short"] = both
    return ways


def random_images(settings: TrainSettings, examples: int) -> ImageData:
    generator = torch.Generator().manual_seed(0)
    size = (examples, 3, settings.image_size, settings.image_size)
    images = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    part = ImagePart(images, torch.randint(0, 10, (examples,), generator=generator))
    return ImageData("random", part, ImagePart(images[:1000], part.labels[:1000]), classes=10)


def random_tokens(settings: TrainSettings, examples: int) -> Tokens:
    generator = torch.Generator().manual_seed(0)
    count = examples * settings.sequence_length + 1
    tokens = torch.randint(0, VOCABULARY, (count,), dtype=torch.int32, generator=generator)
    return Tokens("random", tokens.to(torch.uint16), VOCABULARY, words=0)


def task_on(settings: TrainSettings, data: Data, device: torch.device) -> Task:
    if isinstance(data, Tokens):
        short = Tokens("random", data.tokens[:100], VOCABULARY, words=0)
        return NextTokenPrediction(settings, TokenBlocks(settings, data, [short], device))
    return ImageClassification(settings, DeviceImages(settings, data, device))


def ours(
    settings: TrainSettings, data: Data, device: torch.device, folder: str | None = None
) -> Iterator[None]:
    """Our steps, one at each turn; tracked where there is a folder."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="no")
    task = task_on(settings, data, device)
    model = task.model().to(device)
    optimiser = optimiser_of(settings, model, device)
    model, optimiser = accelerator.prepare(model, optimiser)
    loss_of, _ = compiled(settings, task, plain=True)
    step = eager_step(settings, accelerator, model, optimiser, loss_of)
    tracker = None
    if folder is not None:
        total = Times(settings, task.examples).total
        every = max(1, total // settings.measurements)
        tracker = watch.RankTracker(model, folder, schedule=watch.Schedule(often=every, seldom=[]))
    if settings.cuda_graph and settings.compile != "none" and device.type == "cuda":
        (step,) = graphed(step, before_capture=tracker.flush if tracker else lambda: None)
    epoch, number = 0, 0
    try:
        while True:
            for batch in task.batches(epoch, 0, settings.batch_size, slice(None)):
                set_rate(optimiser, settings.learning_rate)
                loss, number = step(batch), number + 1
                if tracker is not None:
                    tracker.step(number, **({"loss": loss} if number % settings.log_every == 0 else {}))
                yield
            epoch += 1
    finally:
        if tracker is not None:
            tracker.close()


def timed_ours(
    name: str,
    settings: TrainSettings,
    data: Data,
    seconds: float,
    device: torch.device,
    tracked: bool = False,
) -> Row:
    """Seconds per step: warm-up first, then as many steps as fit, in ten parts of which the median counts.

    Where it is tracked, their mean does: a measurement falls into few of them.
    """
    torch._dynamo.reset()
    gc.collect()
    begun = time.perf_counter()
    with chosen_kernels(settings), tempfile.TemporaryDirectory() as folder:
        run = ours(settings, data, device, folder if tracked else None)
        for _ in range(10):
            next(run)
        synchronise(device)
        warm_up = time.perf_counter() - begun
        begun = time.perf_counter()
        for _ in range(5):
            next(run)
        synchronise(device)
        once = (time.perf_counter() - begun) / 5
        count = max(1, min(300, int(seconds / 10 / once)))
        parts = []
        for _ in range(10):
            begun = time.perf_counter()
            for _ in range(count):
                next(run)
            synchronise(device)
            parts.append((time.perf_counter() - begun) / count)
        run.close()
    return row(name, settings, sum(parts) / len(parts) if tracked else sorted(parts)[5], warm_up)


def timed_trainer(settings: TrainSettings, data: Data, seconds: float, device: torch.device) -> Row:
    """The Hugging Face Trainer as one sets it up: eager, bf16 autocast, workers that prepare the examples."""
    from transformers import (
        GPT2LMHeadModel,
        Trainer,
        TrainerCallback,
        TrainingArguments,
        ViTForImageClassification,
    )

    settings = replace(settings, batch_size=settings.micro_batch_size or settings.batch_size)
    model: Any
    examples: Any
    if isinstance(data, Tokens):
        model = GPT2LMHeadModel(cast(Any, language_model(settings, VOCABULARY)).config)
        examples = Blocks(data, settings.sequence_length)
    else:
        model = ViTForImageClassification(cast(Any, vision_transformer(settings, 3, 10)).config)
        examples = Images(data)

    class Clock(TrainerCallback):
        """Stops when the time is over; the first steps are warm-up."""

        def __init__(self) -> None:
            self.begun, self.ended, self.steps = 0.0, 0.0, 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 20:
                synchronise(device)
                self.begun = time.perf_counter()
            elif state.global_step > 20 and time.perf_counter() - self.begun > seconds:
                synchronise(device)
                self.ended, self.steps = time.perf_counter(), state.global_step - 20
                control.should_training_stop = True

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            bf16=device.type == "cuda",
            max_steps=100_000,
            save_strategy="no",
            report_to=[],
            dataloader_num_workers=min(15, (os.cpu_count() or 1) - 1),
            dataloader_drop_last=True,
            logging_strategy="no",
            disable_tqdm=True,
        )
        Trainer(model, arguments, train_dataset=examples, callbacks=[clock]).train()
    return row("Hugging Face Trainer, eager", settings, (clock.ended - clock.begun) / clock.steps, 0.0)


class Blocks(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The same blocks of text one by one."""

    def __init__(self, data: Tokens, length: int) -> None:
        self.tokens, self.length = data.tokens, length

    def __len__(self) -> int:
        return len(self.tokens) // self.length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        block = self.tokens[index * self.length : (index + 1) * self.length].long()
        return {"input_ids": block, "labels": block}


class Images(torch.utils.data.Dataset[dict[str, Tensor]]):
    """The same images one by one, cropped and mirrored as usual."""

    def __init__(self, data: ImageData) -> None:
        self.part = data.train

    def __len__(self) -> int:
        return len(self.part.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        image = nn.functional.pad(self.part.images[index], (4, 4, 4, 4))
        down, right = torch.randint(0, 9, (2,)).tolist()
        side = self.part.images.shape[-1]
        image = image[:, down : down + side, right : right + side]
        if torch.rand(()) < 0.5:
            image = image.flip(2)
        return {"pixel_values": (image.float() - 128) / 64, "labels": self.part.labels[index]}


def operations(settings: TrainSettings) -> float:
    """Floating-point operations of one image or token, forward and backward."""
    width = settings.heads * settings.head_size
    weights = settings.layers * settings.hidden_size * (4 * width + 2 * settings.mlp_size)
    if settings.is_text:
        attention = settings.layers * settings.sequence_length * width
        return 6.0 * (weights + VOCABULARY * settings.hidden_size + attention)
    tokens = (settings.image_size // settings.patch_size) ** 2 + 1
    patches = 3 * settings.patch_size**2 * settings.hidden_size
    attention = settings.layers * 2 * tokens * width
    return 6.0 * tokens * (weights + patches + attention)


def row(name: str, settings: TrainSettings, seconds: float, warm_up: float) -> Row:
    units = settings.batch_size * (settings.sequence_length if settings.is_text else 1) / seconds
    return {
        "name": name,
        "unit": "tokens" if settings.is_text else "images",
        "seconds per step": seconds,
        "per second": units,
        "TFLOP/s": units * operations(settings) / 1e12,
        "warm-up seconds": warm_up,
    }


def show(row: Row) -> None:
    print(
        f"{row['name']:32s} {1e3 * row['seconds per step']:8.2f} ms a step {row['per second']:10,.0f} "
        f"{row['unit']}/s {row['TFLOP/s']:6.0f} TFLOP/s, warm-up {row['warm-up seconds']:.0f} s",
        flush=True,
    )


def matrix_rate(device: torch.device) -> float:
    """TFLOP/s of a large bf16 matrix product."""
    size = 8192 if device.type == "cuda" else 512
    left, right = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    synchronise(device)
    begun = time.perf_counter()
    for _ in range(20):
        left @ right
    synchronise(device)
    return 20 * 2 * size**3 / (time.perf_counter() - begun) / 1e12


def profile(settings: TrainSettings, data: Data, device: torch.device) -> None:
    """The kernels of five steps, the longest first."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    with chosen_kernels(settings):
        run = ours(replace(settings, cuda_graph=False), data, device)
        for _ in range(10):
            next(run)
        synchronise(device)
        with profiled(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
            for _ in range(5):
                next(run)
            synchronise(device)
    key = "self_device_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(found.key_averages().table(sort_by=key, row_limit=45, max_name_column_width=90))


if __name__ == "__main__":
    main()
