"""Networks small enough to train in a second, data for them, and comparing runs to the bit."""

import hashlib
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy
import yaml
from accelerate import Accelerator
from accelerate.optimizer import AcceleratedOptimizer
from PIL import Image
from safetensors.torch import load_file
from tokenizers import ByteLevelBPETokenizer
from torch import nn

from rankrise.record.folder import read_lines
from rankrise.train import Reached, TrainSettings, read_recipe
from rankrise.train._batches import Task
from rankrise.train._images import CIFAR_FILES
from rankrise.train._optimiser import optimiser_of
from rankrise.train._step import Step, steps_of
from rankrise.train._task import task_of
from rankrise.train._text import made_text

TINY = TrainSettings(
    data="digits",
    image_size=8,
    patch_size=2,
    augmentation="crop",
    layers=2,
    heads=2,
    hidden_size=16,
    mlp_size=16,
    head_size=12,
    epochs=2,
    warm_up_epochs=0.5,
    batch_size=100,
    learning_rate=3e-3,
    precision="fp32",
    compile="none",
    evaluate_every=1,
    log_every=4,
    checkpoint_every=0.5,
    measurements=10,
    spectra_epochs=(1,),
)
"""15 steps an epoch; checkpoints at 8, 15, 22 and 30, the first in the middle of an epoch."""
TINY_TEXT = replace(
    TINY,
    data="text",
    data_name="stories",
    tokenizer="pairs",
    sequence_length=32,
    head_size=8,
    batch_size=20,
    epochs=1,
    warm_up_epochs=0.25,
    evaluate_every=0.5,
    checkpoint_every=0.3,
)
"""19 steps; checkpoints at 6, 11, 17 and 19."""
TINY_REGRESSION = replace(
    read_recipe("regression-stages"), examples=64, pairs=5, batch_size=16, layers=2, heads=2, head_size=8,
    epochs=3, log_every=1, evaluate_every=1, checkpoint_every=1, measurements=4, spectra_epochs=(1,),
)  # fmt: skip
"""12 steps; checkpoints at 4, 8 and 12."""


def same_run(one: Path, other: Path) -> None:
    """Both records and the last checkpoints are the same to the bit, but for the times of day."""
    for name in ("steps.jsonl", "ranks.jsonl"):
        rows = [
            [{key: row[key] for key in row if key != "time"} for row in read_lines(folder / name)]
            for folder in (one, other)
        ]
        assert rows[0] == rows[1]
    for pattern in ("spectra/*.safetensors", "checkpoint/*/*.safetensors"):
        files = [sorted(path.relative_to(folder) for path in folder.glob(pattern)) for folder in (one, other)]
        assert files[0] == files[1]
        assert files[0]
        for file in files[0]:
            tensors, others = load_file(one / file), load_file(other / file)
            assert tensors.keys() == others.keys()
            assert all(tensors[name].equal(others[name]) for name in tensors), file


def stop_at(step: int) -> Callable[[Reached], None]:
    """A progress that stops a run by SIGTERM when it reports that step."""

    def progress(where: Reached) -> None:
        if where.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


def steps_on(
    settings: TrainSettings, device: str = "cpu"
) -> tuple[Task, nn.Module, AcceleratedOptimizer, Step, Step]:
    """A task on a device, its network and optimiser, the step of training and the score of validation."""
    accelerator = Accelerator(mixed_precision="no", cpu=device == "cpu")
    task = task_of(settings, accelerator.device)
    model = task.model().to(accelerator.device)
    prepared = accelerator.prepare(model, optimiser_of(settings, model, accelerator.device))
    return task, *prepared, *steps_of(settings, accelerator, task, *prepared, before_capture=lambda: None)


def recipe_file(settings: TrainSettings, path: Path, **changes: object) -> Path:
    """The settings as a recipe."""
    path.write_text(yaml.safe_dump(replace(settings, **changes).to_dict()))
    return path


def write_stories(data: Path) -> Path:
    """A text folder `stories` and a tokenizer `pairs` of 300 tokens in a data folder."""
    (data / "stories").mkdir(parents=True)
    (data / "pairs").mkdir()
    for seed, part in ((1, "train"), (2, "valid")):
        (data / "stories" / f"stories.{part}.txt").write_text(made_text(150, seed))
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train(
        [str(data / "stories" / "stories.train.txt")],
        vocab_size=300,
        special_tokens=["<|endoftext|>"],
        show_progress=False,
    )
    tokenizer.save_model(str(data / "pairs"))
    return data


def write_cifar(folder: Path, name: str) -> tuple[numpy.ndarray, list[int], dict[str, str]]:
    """Four images per file: the images and labels of the training set, and the MD5 of the files."""
    images, labels, sums = [], [], {}
    for number, file in enumerate(CIFAR_FILES[name]):
        batch = numpy.random.default_rng(number).integers(0, 256, (4, 3, 32, 32), dtype=numpy.uint8)
        classes = [(number + index) % 10 for index in range(4)]
        coarse = [] if name == "cifar10" else [99]
        records = zip(classes, batch, strict=True)
        content = b"".join(bytes([*coarse, label]) + image.tobytes() for label, image in records)
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(content)
        sums[file] = hashlib.md5(content).hexdigest()
        images.append(batch)
        labels += classes
    return numpy.concatenate(images[:-1]), labels[:-4], sums


def write_photographs(folder: Path, classes: dict[str, int], held_out: int, side: int = 20) -> Path:
    """An image folder with that many photographs per class to train on, and `held_out` to validate."""
    for part in ("train", "val"):
        for name, count in classes.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(count if part == "train" else held_out):
                generator = numpy.random.default_rng([number, len(part), ord(name[0])])
                pixels = generator.integers(0, 256, (side, side + 8, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder
