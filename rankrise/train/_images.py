"""The class of an image, by a vision transformer: data sets on the device or read from files meanwhile."""

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import DOWN, INDEX, MIRRORED, RIGHT, Batch, Task, epoch_plan, sent, shares
from rankrise.train._networks import vision_transformer

DIGITS_TO_TRAIN_ON = 1500  # the other 297, by other writers, are the validation set
CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR_FILES = {
    "cifar10": {
        "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    "cifar100": {
        "cifar-100-binary/train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
        "cifar-100-binary/test.bin": "4499cfba6c016c1be1438163640a0898",
    },
}  # the test set last, and the published MD5 of each
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
LABELS_KEY = 2**63 + 1  # apart from every seed: runs of all seeds have the same wrong labels


class Images(NamedTuple):
    """Images in memory, uint8 [n, channels, side, side], and the class of each, int64 [n]."""

    pixels: Tensor
    labels: Tensor


Photographs = list[tuple[Path, int]]
"""Images in files, and the class of each."""


def read_digits() -> tuple[Images, Images]:
    """scikit-learn's 1797 digits as grey images of 8 x 8, to train on and to validate."""
    digits = require("sklearn.datasets", extra="train", purpose="the digits data set").load_digits()
    pixels = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    first = DIGITS_TO_TRAIN_ON
    return Images(pixels[:first], labels[:first]), Images(pixels[first:], labels[first:])


def read_cifar(name: str, folder: str | Path) -> tuple[Images, Images]:
    """CIFAR-10, or CIFAR-100 with its 100 fine classes, as unpacked in `folder`."""
    before = 1 if name == "cifar10" else 2  # bytes of labels: of CIFAR-100 the coarse one, then the fine one
    parts = []
    for file, published in CIFAR_FILES[name].items():
        path = Path(folder) / file
        if not path.is_file():
            raise RankriseError(f"{path} is missing: unpack the binary version from {CIFAR_HOME} there.")
        content = bytearray(path.read_bytes())
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != published:
            raise RankriseError(f"{path} does not have the published MD5: download it from {CIFAR_HOME}.")
        rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, before + 3072)
        pixels = rows[:, before:].reshape(-1, 3, 32, 32).contiguous()
        parts.append(Images(pixels, rows[:, before - 1].to(torch.int64)))
    return Images(*map(torch.cat, zip(*parts[:-1], strict=True))), parts[-1]


def read_image_folder(folder: Path) -> tuple[Photographs, Photographs, int]:
    """Photographs in train/<class>/* and in val/<class>/*, and the number of classes."""
    parts = [
        sorted(path for path in (folder / part).glob("*/*") if path.suffix.lower() in SUFFIXES)
        for part in ("train", "val")
    ]
    names, others = (sorted({path.parent.name for path in paths}) for paths in parts)
    if not names or names != others:
        raise RankriseError(
            f"{folder} needs photographs of the same classes in train/<class>/ and val/<class>/."
        )
    numbers = {name: number for number, name in enumerate(names)}
    train, validation = ([(path, numbers[path.parent.name]) for path in paths] for paths in parts)
    return train, validation, len(names)


def opened(path: Path) -> Any:
    """A decoded photograph, as Pillow's image."""
    pillow = require("PIL.Image", extra="train", purpose="an image folder")
    try:
        picture = pillow.open(path)
        picture.load()
    except Exception as error:  # decoders fail in many ways
        raise RankriseError(f"{path} cannot be decoded ({error}): remove it or unpack it again.") from error
    return picture


def fitted(picture: Any, side: int) -> numpy.ndarray:
    """The largest square in the middle of a photograph, at size `side`. uint8 [3, side, side]"""
    width, height = picture.size
    square = min(width, height)
    left, upper = (width - square) // 2, (height - square) // 2
    return _scaled(picture, (left, upper, left + square, upper + square), side)


def random_crop(picture: Any, side: int, generator: numpy.random.Generator) -> numpy.ndarray:
    """ImageNet's usual crop: 8 to 100 % of the area, 3:4 to 4:3, perhaps mirrored. uint8 [3, side, side]"""
    width, height = picture.size
    for _ in range(10):
        area = width * height * generator.uniform(0.08, 1.0)
        shape = numpy.exp(generator.uniform(numpy.log(3 / 4), numpy.log(4 / 3)))
        w, h = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left = int(generator.integers(0, width - w, endpoint=True))
            upper = int(generator.integers(0, height - h, endpoint=True))
            pixels = _scaled(picture, (left, upper, left + w, upper + h), side)
            break
    else:
        pixels = fitted(picture, side)
    return numpy.ascontiguousarray(pixels[:, :, ::-1]) if generator.random() < 0.5 else pixels


def _scaled(picture: Any, box: tuple[int, int, int, int], side: int) -> numpy.ndarray:
    """A box of a photograph in RGB at size `side`. uint8 [3, side, side]"""
    bilinear = 2  # over the whole area
    pixels = numpy.asarray(picture.convert("RGB").resize((side, side), bilinear, box))
    return numpy.ascontiguousarray(pixels.transpose(2, 0, 1))


def decoded(photographs: Photographs, side: int, meter: Meter = unseen) -> Images:
    """All photographs at size `side`."""
    whole = _Cropped(photographs, side, draw=None)
    pixels = torch.empty(len(photographs), 3, side, side, dtype=torch.uint8)
    with ThreadPoolExecutor(os.cpu_count()) as executor, meter("decoding", len(pixels), "images") as move_to:
        for number, (image, _) in enumerate(executor.map(whole.__getitem__, range(len(pixels)))):
            pixels[number] = image
            move_to(number + 1)
    return Images(pixels, torch.tensor([label for _, label in photographs]))


def image_classification(settings: TrainSettings, device: torch.device, meter: Meter) -> "ImageTask":
    """The task on the data of the settings."""
    streamed = settings.augmentation == "resized-crop-flip"
    if streamed and (settings.data != "image-folder" or settings.label_noise):
        raise RankriseError("resized-crop-flip takes an image folder and no label_noise: pass crop-flip.")
    if settings.data == "digits":
        return DeviceImages(settings, read_digits(), 10, device)
    if settings.data != "image-folder":
        parts = read_cifar(settings.data, settings.data_folder)
        return DeviceImages(settings, parts, int(settings.data[5:]), device)
    *photographs, classes = read_image_folder(Path(settings.data_folder) / settings.data_name)
    if streamed:
        return StreamedImages(settings, photographs, classes, device)
    train, validation = (decoded(part, settings.image_size, meter) for part in photographs)
    return DeviceImages(settings, (train, validation), classes, device)


class ImageTask(Task):
    """Cross-entropy of classes; subclasses turn batches into pixels and labels, -1 for padding."""

    takes = ("pixel_values", "labels")
    channels: int
    classes: int

    def model(self) -> nn.Module:
        return vision_transformer(self.settings, self.channels, self.classes)

    def judged(self, model: Any, inputs: Tensor, answers: Tensor) -> tuple[Tensor, ...]:
        """Cross-entropy of each image, 0 if its label is -1, and whether its class is found. Both [share]"""
        logits = model(pixel_values=inputs).logits.float()
        losses = nn.functional.cross_entropy(logits, answers, ignore_index=-1, reduction="none")
        return losses, logits.argmax(1) == answers

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """Numbers of images and of correct classes, and the sum of losses. [3]"""
        pixels, labels = self.read(*batch)
        losses, right = self.judged(model, pixels, labels)
        sums = (labels >= 0).sum(), right.sum(), losses.detach().sum()
        return torch.stack([value.double() for value in sums])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        return {"accuracy": sums[1] / sums[0], "validation_loss": sums[2] / sums[0]}


class DeviceImages(ImageTask):
    """The whole data set on the device; a batch is some rows of the epoch's plan."""

    def __init__(
        self, settings: TrainSettings, parts: Sequence[Images], classes: int, device: torch.device
    ) -> None:
        train, validation = parts
        self.settings, self.device, self.classes = settings, device, classes
        self.margin = 0 if settings.augmentation == "none" else settings.image_size // 8
        self.mirror = settings.augmentation == "crop-flip"
        self.examples, self.channels = train.pixels.shape[:2]
        self.held_out = len(validation.labels)
        self._mean, self._deviation = (one.to(device) for one in mean_and_deviation(train.pixels))
        self._true_labels = train.labels
        of_padding = torch.tensor([-1])
        self._labels = torch.cat([self._labels_in(0), validation.labels, of_padding]).to(device)
        self._images = torch.cat([train.pixels, validation.pixels]).to(device)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the plan; also labels, if they are redrawn. ([share, 4],) or (…, [share])"""
        batches = super().batches(epoch, first, batch_size, share)
        if not self.settings.redraw_labels:
            return batches
        labels = sent(self._labels_in(epoch), self.device)
        return ((rows, labels[rows[:, INDEX]]) for (rows,) in batches)

    def read(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        rows, *redrawn = batch
        labels = redrawn[0] if redrawn else self._labels[rows[:, INDEX]]
        return (cut(self._images, rows) - self._mean) / self._deviation, labels

    def _labels_in(self, epoch: int) -> Tensor:
        """The labels, of which a share is replaced by random classes (Zhang et al., 2017)."""
        key = numpy.array([LABELS_KEY, epoch], numpy.uint64)
        generator = numpy.random.Generator(numpy.random.Philox(key=key))
        replaced = torch.from_numpy(generator.random(self.examples) < self.settings.label_noise)
        drawn = torch.from_numpy(generator.integers(0, self.classes, self.examples))
        return torch.where(replaced, drawn, self._true_labels)


class StreamedImages(ImageTask):
    """Photographs that worker processes open and crop while the device computes; pixels from -1 to 1."""

    channels = 3

    def __init__(
        self, settings: TrainSettings, parts: Sequence[Photographs], classes: int, device: torch.device
    ) -> None:
        self.settings, self.device, self.classes = settings, device, classes
        self._photographs = [*parts[0], *parts[1]]
        self.examples, self.held_out = map(len, parts)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images, uint8 [share, 3, side, side], and labels, [share]."""
        plan = epoch_plan(self.examples, self.settings.seed, epoch)
        return self._loaded(shares(plan, first, batch_size, share), (self.settings.seed, epoch))

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images and labels; the label of padding is -1."""
        return self._loaded((rows for (rows,) in super().validation_batches(batch_size, share)), None)

    def read(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        images, labels = batch
        return images / 127.5 - 1.0, labels

    def _loaded(self, batches: Iterator[Tensor], draw: tuple[int, int] | None) -> Iterator[Batch]:
        loader = DataLoader(
            _Cropped(self._photographs, self.settings.image_size, draw),
            batch_sampler=[rows[:, INDEX].tolist() for rows in batches],
            num_workers=self.settings.workers,
            pin_memory=self.device.type == "cuda",
        )
        for images, labels in loader:
            yield images.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)


class _Cropped(Dataset[tuple[Tensor, int]]):
    """Photographs by number: cropped at random with `draw`, (seed, epoch), else the middle; black for -1."""

    def __init__(self, photographs: Photographs, side: int, draw: tuple[int, int] | None) -> None:
        self.photographs, self.side, self.draw = photographs, side, draw

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        if number < 0:
            return torch.zeros(3, self.side, self.side, dtype=torch.uint8), -1
        path, label = self.photographs[number]
        if self.draw is None:
            return torch.from_numpy(fitted(opened(path), self.side)), label
        philox = numpy.random.Philox(key=list(self.draw), counter=[0, 0, 0, number + 1])
        return torch.from_numpy(random_crop(opened(path), self.side, numpy.random.Generator(philox))), label


def mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and deviation of each channel's values (0 to 255), by counting them. [channels, 1, 1]"""
    values = torch.arange(256, dtype=torch.float64)
    counts = torch.stack([torch.bincount(one.flatten(), minlength=256) for one in images.unbind(1)])
    shares = counts.double() / counts[0].sum()
    mean = (shares * values).sum(1)
    deviation = (shares * (values - mean[:, None]) ** 2).sum(1).sqrt()
    deviation = deviation.where(deviation > 0, 1.0)
    return mean.float().view(-1, 1, 1), deviation.float().view(-1, 1, 1)


def cut(images: Tensor, rows: Tensor) -> Tensor:
    """Pick images by the rows of a plan, moved and mirrored; black comes in. [batch, channels, h, w]"""
    _, channels, height, width = images.shape
    column = torch.arange(width, device=images.device)
    column = torch.where(rows[:, MIRRORED, None] > 0, width - 1 - column, column) + rows[:, RIGHT, None]
    row = torch.arange(height, device=images.device) + rows[:, DOWN, None]
    row, column = row[:, :, None], column[:, None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
    pixels = images[
        rows[:, INDEX, None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        row.clamp(0, height - 1)[:, None],
        column.clamp(0, width - 1)[:, None],
    ]
    return torch.where(inside[:, None], pixels, torch.zeros_like(pixels))
