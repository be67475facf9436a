"""Training speed of a recipe's model: ours, the eager Hugging Face Trainer, the card's matrix rate.

    python benchmarks/train.py               # the paper's CIFAR model as its recipe has it
    python benchmarks/train.py --recipe gpt2-wikipedia
    python benchmarks/train.py --variants    # ours compiled in every way, with every attention kernel

The data are random images of CIFAR-10's size, or random tokens. Each way of training is measured for at most
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
from copy import copy
from dataclasses import replace
from typing import Any

import torch
from timing import synchronise
from torch import Tensor, nn

from rankrise import watch
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.train._batches import Task
from rankrise.train._images import DeviceImages, Images
from rankrise.train._optimiser import optimiser_of
from rankrise.train._step import chosen_kernels, steps_of
from rankrise.train._text import NextTokenPrediction, Tokens
from rankrise.train._times import Times, set_rate

VOCABULARY = 50257
SMALL = {
    "layers": 2, "heads": 2, "hidden_size": 32, "mlp_size": 32, "head_size": 16, "batch_size": 32,
    "micro_batch_size": 16, "sequence_length": 32, "compile": "none",
}  # fmt: skip
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--recipe", default="vit-cifar10", help="a recipe's name or path")
    parser.add_argument("--variants", action="store_true", help="time every way to compile and to attend")
    parser.add_argument("--seconds", type=float, default=20.0, help="longest measurement of each")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script without a GPU")
    options = parser.parse_args()
    settings = read_recipe(options.recipe)
    settings = replace(settings, **SMALL) if options.tiny else settings
    task = random_task(settings, 5000 if options.tiny else 50_000)
    wanted = variants(settings) if options.variants else {"ours": settings, "ours, tracked": settings}
    for name, variant in wanted.items():
        show(name, settings, *timed_ours(name, variant, task, options.seconds))
    if not options.variants:
        show("Hugging Face Trainer, eager", settings, *timed_trainer(settings, task, options.seconds))
        print(f"bf16 matrix product of this machine: {matrix_rate():.0f} TFLOP/s")


def variants(settings: TrainSettings) -> dict[str, TrainSettings]:
    """Ways to compute the same step."""
    kernels = ("cudnn", "flash")
    ways = {
        f"model, graph, {kernel}": replace(settings, attention=kernel, deterministic=False)
        for kernel in (kernels if settings.subject == "text" else ("short", *kernels))
    }
    return ways | {
        "model, graph, deterministic": replace(settings, deterministic=True),
        "model, no graph": replace(settings, cuda_graph=False),
        "not compiled": replace(settings, compile="none"),
    }


def random_task(settings: TrainSettings, examples: int) -> Task:
    generator = torch.Generator().manual_seed(0)
    if settings.subject == "text":
        count = examples // 2 * settings.sequence_length + 1
        tokens = torch.randint(0, VOCABULARY, (count,), dtype=torch.int32, generator=generator)
        train = Tokens("random", tokens.to(torch.uint16), VOCABULARY, words=0)
        return NextTokenPrediction(settings, train, [train._replace(tokens=train.tokens[:100])], DEVICE)
    size = (examples, 3, settings.image_size, settings.image_size)
    images = torch.randint(0, 256, size, dtype=torch.uint8, generator=generator)
    train = Images(images, torch.randint(0, 10, (examples,), generator=generator))
    validation = Images(images[:1000], train.labels[:1000])
    return DeviceImages(settings, (train, validation), 10, DEVICE)


def ours(settings: TrainSettings, task: Task, folder: str | None) -> Iterator[None]:
    """Our steps, one at each turn; tracked if there is a folder."""
    from accelerate import Accelerator

    accelerator = Accelerator(mixed_precision="no")
    task = copy(task)  # the data are shared
    task.settings = settings
    model: Any = task.model().to(DEVICE)
    model, optimiser = accelerator.prepare(model, optimiser_of(settings, model, DEVICE))
    tracker = None
    if folder is not None:
        every = max(1, Times(settings, task.examples).total // settings.measurements)
        tracker = watch.RankTracker(model, folder, schedule=watch.Schedule(often=every, seldom=[]))
    before_capture = tracker.flush if tracker else lambda: None
    step, _ = steps_of(settings, accelerator, task, model, optimiser, before_capture)
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


def timed_ours(name: str, settings: TrainSettings, task: Task, seconds: float) -> tuple[float, float]:
    """Seconds per step, the median of ten parts, and of the warm-up before.

    If tracked, their mean counts, because a measurement falls into few of them.
    """
    torch._dynamo.reset()
    gc.collect()
    tracked = name.endswith("tracked")

    def taken(count: int) -> float:
        begun = time.perf_counter()
        for _ in range(count):
            next(run)
        synchronise(DEVICE)
        return (time.perf_counter() - begun) / count

    with chosen_kernels(settings), tempfile.TemporaryDirectory() as folder:
        run = ours(settings, task, folder if tracked else None)
        warm_up = 10 * taken(10)
        count = max(1, min(300, int(seconds / 10 / taken(5))))
        parts = sorted(taken(count) for _ in range(10))
        run.close()
    return sum(parts) / len(parts) if tracked else parts[5], warm_up


def timed_trainer(settings: TrainSettings, task: Task, seconds: float) -> tuple[float, float]:
    """The Hugging Face Trainer as one sets it up: eager, bf16 autocast, workers that prepare the examples."""
    import transformers

    whole = settings.batch_size
    settings = replace(settings, batch_size=settings.micro_batch_size or whole)
    shaped: Any = task.model()
    model = type(shaped)(shaped.config)

    class Clock(transformers.TrainerCallback):
        """Stops when the time is over; the first steps are warm-up."""

        def __init__(self) -> None:
            self.begun, self.ended, self.steps = 0.0, 0.0, 0

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 20:
                synchronise(DEVICE)
                self.begun = time.perf_counter()
            elif state.global_step > 20 and time.perf_counter() - self.begun > seconds:
                synchronise(DEVICE)
                self.ended, self.steps = time.perf_counter(), state.global_step - 20
                control.should_training_stop = True

    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            per_device_train_batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
            bf16=DEVICE.type == "cuda",
            max_steps=100_000,
            save_strategy="no",
            report_to=[],
            dataloader_num_workers=min(15, (os.cpu_count() or 1) - 1),
            dataloader_drop_last=True,
            logging_strategy="no",
            disable_tqdm=True,
        )
        trainer = transformers.Trainer(model, arguments, train_dataset=Examples(task), callbacks=[clock])
        trainer.train()
    part = settings.batch_size / whole
    return (clock.ended - clock.begun) / clock.steps / part, 0.0


class Examples(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Random examples one by one: blocks of text, or images that are cropped and mirrored as usual."""

    def __init__(self, task: Any) -> None:
        self.length, self.count = task.units_per_example, task.examples
        self.text = isinstance(task, NextTokenPrediction)
        self.data = (task._tokens if self.text else task._images).cpu()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.text:
            block = self.data[index * self.length : (index + 1) * self.length].long()
            return {"input_ids": block, "labels": block}
        image = nn.functional.pad(self.data[index], (4, 4, 4, 4))
        down, right = torch.randint(0, 9, (2,)).tolist()
        side = self.data.shape[-1]
        image = image[:, down : down + side, right : right + side]
        image = image.flip(2) if torch.rand(()) < 0.5 else image
        return {"pixel_values": (image.float() - 128) / 64, "labels": index % 10}


def show(name: str, settings: TrainSettings, seconds: float, warm_up: float) -> None:
    """Print a row; floating-point operations are those of one image or token, forward and backward."""
    width, text = settings.heads * settings.head_size, settings.subject == "text"
    weights = settings.layers * settings.hidden_size * (4 * width + 2 * settings.mlp_size)
    if text:
        attention = settings.layers * settings.sequence_length * width
        operations = 6.0 * (weights + VOCABULARY * settings.hidden_size + attention)
    else:
        tokens = (settings.image_size // settings.patch_size) ** 2 + 1
        patches = 3 * settings.patch_size**2 * settings.hidden_size
        operations = 6.0 * tokens * (weights + patches + settings.layers * 2 * tokens * width)
    units = settings.batch_size * (settings.sequence_length if text else 1) / seconds
    print(
        f"{name:32s} {1e3 * seconds:8.2f} ms a step {units:10,.0f} {'tokens' if text else 'images'}/s "
        f"{units * operations / 1e12:6.0f} TFLOP/s, warm-up {warm_up:.0f} s",
        flush=True,
    )


def matrix_rate() -> float:
    """TFLOP/s of a large bf16 matrix product."""
    size = 8192 if DEVICE.type == "cuda" else 512
    left, right = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    for _ in range(3):
        left @ right
    synchronise(DEVICE)
    begun = time.perf_counter()
    for _ in range(20):
        left @ right
    synchronise(DEVICE)
    return 20 * 2 * size**3 / (time.perf_counter() - begun) / 1e12


if __name__ == "__main__":
    main()
