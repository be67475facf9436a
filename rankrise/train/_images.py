"""The class of an image, by a vision transformer.

A data set that fits lies on the device, where each batch is cut out of it; photographs may also be read from
files while training.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train import _image_files as files
from rankrise.train._batches import DOWN, INDEX, MIRRORED, RIGHT, Batch, Task, epoch_plan, sent, shares
from rankrise.train._image_files import Images, Photographs
from rankrise.train._networks import vision_transformer

DRAWS = 2**63 + 1
"""Key of the random labels, apart from every seed: runs of all seeds have the same wrong labels."""


def image_classification(settings: TrainSettings, device: torch.device) -> "ImageTask":
    """The task on the data of the settings."""
    if settings.data == "digits":
        return DeviceImages(settings, files.read_digits(), 10, device)
    if settings.data != "image-folder":
        small = files.read_cifar(settings.data, settings.data_folder)
        return DeviceImages(settings, small, int(settings.data[5:]), device)
    *photographs, classes = files.read_image_folder(Path(settings.data_folder) / settings.data_name)
    if settings.augmentation == "resized-crop-flip":
        return StreamedImages(settings, photographs, classes, device)
    parts = [files.decoded(part, settings.image_size) for part in photographs]
    return DeviceImages(settings, parts, classes, device)


class ImageTask(Task):
    """Cross-entropy of classes; subclasses turn batches into pixels and labels."""

    name = "image classification"
    compiled_parts = ("pixels", "validation_pixels", "judged")
    channels: int
    classes: int
    pixels: Any
    validation_pixels: Any

    def model(self) -> nn.Module:
        return vision_transformer(self.settings, self.channels, self.classes)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        losses, _ = self.judged(model, *self.pixels(*batch))
        mean: Tensor = losses.mean()
        return mean

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        pixels, labels = self.pixels(*batch)
        return {"pixel_values": pixels, "labels": labels}

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """Numbers of images and of correct classes, and the sum of losses. [3]"""
        pixels, labels = self.validation_pixels(*batch)
        losses, right = self.judged(model, pixels, labels)
        sums = (labels >= 0).sum(), right.sum(), losses.detach().sum()
        return torch.stack([value.double() for value in sums])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        return {"accuracy": sums[1] / sums[0], "validation_loss": sums[2] / sums[0]}

    @staticmethod
    def judged(model: Any, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-entropy of each image, 0 if its label is -1, and whether its class is found. Both [share]"""
        logits = model(pixel_values=pixels).logits.float()
        losses = nn.functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
        return losses, logits.argmax(1) == labels


class DeviceImages(ImageTask):
    """The whole data set on the device; a batch is some rows of the epoch's plan."""

    def __init__(
        self, settings: TrainSettings, parts: Sequence[Images], classes: int, device: torch.device
    ) -> None:
        train, validation = parts
        if settings.augmentation == "resized-crop-flip":
            raise RankriseError("augmentation resized-crop-flip needs an image folder: pass crop-flip.")
        self.settings, self.device, self.classes = settings, device, classes
        self.examples, self.channels = train.pixels.shape[:2]
        mean, deviation = mean_and_deviation(train.pixels)
        self._mean, self._deviation = mean.to(device).view(-1, 1, 1), deviation.to(device).view(-1, 1, 1)
        self._true_labels = train.labels
        self._images, self._labels = train.pixels.to(device), self._labels_in(0).to(device)
        self._validation = Images(validation.pixels.to(device), validation.labels.to(device))

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the plan; also labels, if they are redrawn. ([share, 4],) or (…, [share])"""
        kind, side = self.settings.augmentation, self.settings.image_size
        margin = 0 if kind == "none" else side // 8
        plan = epoch_plan(self.examples, self.settings.seed, epoch, margin, mirror=kind == "crop-flip")
        whole: Batch = (plan,)
        if self.settings.redraw_labels:
            whole = plan, self._labels_in(epoch)[plan[:, INDEX]]
        whole = tuple(sent(tensor, self.device) for tensor in whole)
        yield from zip(*(shares(tensor, first, batch_size, share) for tensor in whole), strict=True)

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of images as they are, and which of them count. ([share, 4], [share])"""
        numbers = torch.arange(len(self._validation.labels), device=self.device)
        for rows in nn.functional.pad(numbers[:, None], (0, 3)).split(batch_size):
            counts = torch.arange(batch_size, device=self.device) < len(rows)
            rows = nn.functional.pad(rows, (0, 0, 0, batch_size - len(rows)))
            yield rows[share], counts[share]

    def pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Cut the batch out of the data set."""
        rows, *redrawn = batch
        labels = redrawn[0] if redrawn else self._labels[rows[:, INDEX]]
        return (cut(self._images, rows) - self._mean) / self._deviation, labels

    def validation_pixels(self, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The images without augmentation."""
        labels = torch.where(counts, self._validation.labels[rows[:, INDEX]], -1)
        return (cut(self._validation.pixels, rows) - self._mean) / self._deviation, labels

    def _labels_in(self, epoch: int) -> Tensor:
        """The labels, of which a share is replaced by random classes (Zhang et al., 2017)."""
        generator = numpy.random.Generator(numpy.random.Philox(key=numpy.array([DRAWS, epoch], numpy.uint64)))
        replaced = torch.from_numpy(generator.random(self.examples) < self.settings.label_noise)
        drawn = torch.from_numpy(generator.integers(0, self.classes, self.examples))
        return torch.where(replaced, drawn, self._true_labels)


class StreamedImages(ImageTask):
    """Photographs that worker processes open and crop while the device computes; pixels from -1 to 1."""

    channels = 3

    def __init__(
        self, settings: TrainSettings, parts: Sequence[Photographs], classes: int, device: torch.device
    ) -> None:
        if settings.label_noise:
            raise RankriseError("resized-crop-flip has no label_noise: pass another augmentation.")
        self.settings, self.device, self.classes = settings, device, classes
        self._train, self._validation = parts
        self.examples = len(self._train.labels)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images, uint8 [share, 3, side, side], and labels, [share]."""
        plan = epoch_plan(self.examples, self.settings.seed, epoch)[:, INDEX]
        rows = [part.tolist() for part in shares(plan, first, batch_size, share)]
        return self._loaded(self._train, rows, (self.settings.seed, epoch))

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images and labels; the label of padding is -1."""
        count = len(self._validation.labels)
        numbers = [*range(count), *[-1] * (-count % batch_size)]
        rows = [numbers[start : start + batch_size][share] for start in range(0, len(numbers), batch_size)]
        return self._loaded(self._validation, rows, None)

    def pixels(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scale the values."""
        return images / 127.5 - 1.0, labels

    validation_pixels = pixels

    def _loaded(
        self, photographs: Photographs, rows: list[list[int]], draw: tuple[int, int] | None
    ) -> Iterator[Batch]:
        loader = DataLoader(
            _Cropped(photographs, self.settings.image_size, draw),
            batch_sampler=rows,
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
        picture, label = files.opened(self.photographs.paths[number]), self.photographs.labels[number]
        if self.draw is None:
            return torch.from_numpy(files.fitted(picture, self.side)), label
        philox = numpy.random.Philox(key=list(self.draw), counter=[0, 0, 0, number + 1])
        return torch.from_numpy(files.random_crop(picture, self.side, numpy.random.Generator(philox))), label


def mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and standard deviation of each channel's values (0 to 255), by counting them. [channels]

    >>> mean_and_deviation(torch.tensor([[[[0, 2]], [[4, 4]]]], dtype=torch.uint8))
    (tensor([1., 4.]), tensor([1., 1.]))
    """
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        means.append((share * values).sum())
        deviation = (share * (values - means[-1]) ** 2).sum().sqrt()
        deviations.append(deviation if deviation > 0 else torch.ones_like(deviation))
    return torch.stack(means).float(), torch.stack(deviations).float()


def cut(images: Tensor, rows: Tensor) -> Tensor:
    """Pick images by the rows of a plan, moved and mirrored; black comes in from outside.

    images: uint8 [n, channels, height, width]; rows: int64 [batch, 4]; returns uint8 [batch, channels,
    height, width].

    >>> images = torch.arange(1, 5, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> cut(images, torch.tensor([[0, 0, 0, 1], [0, 1, 0, 0]])).tolist()
    [[[[2, 1], [4, 3]]], [[[3, 4], [0, 0]]]]
    """
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
