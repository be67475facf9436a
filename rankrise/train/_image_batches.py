"""Batches of images: cut out of a data set that is whole on the device, or read from files while training."""

from collections.abc import Iterator

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._data.images import ImageData, mean_and_deviation
from rankrise.train._data.photographs import Photographs, fitted, random_crop
from rankrise.train._order import (
    DOWN,
    INDEX,
    MIRRORED,
    OPERATIONS,
    RIGHT,
    Batch,
    epoch_plan,
    plain_plan,
    sent,
    shares,
)
from rankrise.train._rand_augment import moves_of, rand_augmented

DRAWS = 2**63 + 1
"""Key of the random labels, apart from every seed: runs of all seeds have the same wrong labels."""


class DeviceImages:
    """The whole data set on the device; a batch is some rows of the epoch's plan, the last one padded."""

    def __init__(self, settings: TrainSettings, data: ImageData, device: torch.device) -> None:
        _, self.channels, height, width = data.train.images.shape
        if (height, width) != (settings.image_size, settings.image_size):
            raise RankriseError(
                f"image_size is {settings.image_size}, but the images of {data.name} are {width} x {height}: "
                f"pass --image_size {width}."
            )
        if settings.augmentation == "resized-crop-flip":
            raise RankriseError(
                "augmentation is resized-crop-flip, which needs whole photographs: pass stream yes with an "
                "image folder, or augmentation crop-flip."
            )
        self.examples, self.classes = len(data.train.labels), data.classes
        self._settings, self._true_labels = settings, data.train.labels
        self._margin = 0 if settings.augmentation == "none" else settings.image_size // 8
        self._mirror = settings.augmentation in ("crop-flip", "rand-augment")
        moves = moves_of(height, width) if settings.augmentation == "rand-augment" else torch.empty(0)
        self._moves = moves.to(device)
        mean, deviation = mean_and_deviation(data.train.images)
        self._mean, self._deviation = mean.to(device).view(-1, 1, 1), deviation.to(device).view(-1, 1, 1)
        self._images, self._labels = data.train.images.to(device), self._labels_in(0).to(device)
        self._validation_images = data.validation.images.to(device)
        self._validation_labels = data.validation.labels.to(device)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the plan; also labels, if they are redrawn. ([share, columns],) or (…, [share])"""
        plan = epoch_plan(
            self.examples, self._settings.seed, epoch, self._margin, self._mirror, len(self._moves)
        )
        whole: Batch = (plan,)
        if self._settings.redraw_labels:
            whole = plan, self._labels_in(epoch)[plan[:, INDEX]]
        whole = tuple(sent(tensor, self._labels.device) for tensor in whole)
        yield from zip(*(shares(tensor, first, batch_size, share) for tensor in whole), strict=True)

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the plain plan, and which of them count. ([share, 4], [share])"""
        plan = plain_plan(len(self._validation_labels)).to(self._labels.device)
        for start in range(0, len(plan), batch_size):
            rows = plan[start : start + batch_size]
            counts = torch.arange(batch_size, device=plan.device) < len(rows)
            rows = torch.cat([rows, plan[:1].expand(batch_size - len(rows), -1)])
            yield rows[share], counts[share]

    def pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Cut the batch out of the data set."""
        rows, *redrawn = batch
        labels = redrawn[0] if redrawn else self._labels[rows[:, INDEX]]
        images = cut(self._images, rows)
        if len(self._moves):
            images = rand_augmented(images, rows[:, OPERATIONS], self._moves)
        return self._normalised(images), labels

    def validation_pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The images without augmentation."""
        rows, counts = batch
        labels = torch.where(counts, self._validation_labels[rows[:, INDEX]], -1)
        return self._normalised(cut(self._validation_images, rows)), labels

    def _labels_in(self, epoch: int) -> Tensor:
        return noisy(self._true_labels, self.classes, self._settings.label_noise, epoch)

    def _normalised(self, pixels: Tensor) -> Tensor:
        return (pixels - self._mean) / self._deviation


class StreamedImages:
    """Photographs that worker processes open and scale while the device computes; pixels from -1 to 1."""

    channels = 3

    def __init__(
        self,
        settings: TrainSettings,
        train: Photographs,
        validation: Photographs,
        classes: int,
        device: torch.device,
    ) -> None:
        if settings.augmentation == "rand-augment" or settings.label_noise:
            raise RankriseError(
                "streamed photographs have neither rand-augment nor label_noise: leave these out, or "
                "pass stream no."
            )
        self.examples, self.classes = len(train.labels), classes
        self._settings, self._device = settings, device
        self._train, self._validation = train, validation

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images, uint8 [share, 3, side, side], and labels, [share]."""
        settings = self._settings
        margin = settings.image_size // 8 if settings.augmentation in ("crop", "crop-flip") else 0
        plan = epoch_plan(
            self.examples, settings.seed, epoch, margin, mirror=settings.augmentation == "crop-flip"
        )
        rows = [part.tolist() for part in shares(plan, first, batch_size, share)]
        return self._loaded(self._train, rows, (settings.seed, epoch))

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images and labels; the label of padding is -1."""
        plan = plain_plan(len(self._validation.labels)).tolist()
        plan += [[-1, 0, 0, 0]] * (-len(plan) % batch_size)
        rows = [plan[start : start + batch_size][share] for start in range(0, len(plan), batch_size)]
        return self._loaded(self._validation, rows, None)

    def pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Scale the values."""
        images, labels = batch
        return images / 127.5 - 1.0, labels

    validation_pixels = pixels

    def _loaded(
        self, pictures: Photographs, rows: list[list[list[int]]], draw: tuple[int, int] | None
    ) -> Iterator[Batch]:
        resized = self._settings.augmentation == "resized-crop-flip"
        loader = DataLoader(
            _Planned(pictures, self._settings.image_size, draw if resized else None),
            batch_sampler=rows,
            num_workers=self._settings.workers,
            pin_memory=self._device.type == "cuda",
        )
        try:
            for images, labels in loader:
                yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
        except RankriseError as error:  # torch puts a worker's traceback before the sentence
            raise RankriseError(str(error).rstrip().rpartition("RankriseError: ")[2]) from error


class _Planned(Dataset[tuple[Tensor, int]]):
    """Photographs by the rows of a plan; with `draw`, (seed, epoch), cropped at random."""

    def __init__(self, pictures: Photographs, side: int, draw: tuple[int, int] | None) -> None:
        self.pictures, self.side, self.draw = pictures, side, draw

    def __getitem__(self, row: list[int]) -> tuple[Tensor, int]:
        index = row[INDEX]
        if index < 0:
            return torch.zeros(3, self.side, self.side, dtype=torch.uint8), -1
        picture, label = self.pictures.open(index), self.pictures.labels[index]
        if self.draw is not None:
            philox = numpy.random.Philox(key=list(self.draw), counter=[0, 0, 0, index + 1])
            return torch.from_numpy(random_crop(picture, self.side, numpy.random.Generator(philox))), label
        image = torch.from_numpy(fitted(picture, self.side))[None]
        return cut(image, torch.tensor([[0, *row[1:]]]))[0], label


def cut(images: Tensor, rows: Tensor) -> Tensor:
    """Pick images by the rows of a plan, moved and mirrored; black comes in from outside.

    images: uint8 [n, channels, height, width]; rows: int64 [batch, 4]; returns uint8 [batch, channels,
    height, width].

    >>> images = torch.arange(1, 5, dtype=torch.uint8).view(1, 1, 2, 2)
    >>> cut(images, torch.tensor([[0, 0, 0, 1], [0, 1, 0, 0]])).tolist()
    [[[[2, 1], [4, 3]]], [[[3, 4], [0, 0]]]]
    """
    _, channels, height, width = images.shape
    x = torch.arange(width, device=images.device)
    x = torch.where(rows[:, MIRRORED, None] > 0, width - 1 - x, x) + rows[:, RIGHT, None]
    y = torch.arange(height, device=images.device) + rows[:, DOWN, None]
    inside = ((y >= 0) & (y < height))[:, None, :, None] & ((x >= 0) & (x < width))[:, None, None, :]
    pixels = images[
        rows[:, INDEX, None, None, None],
        torch.arange(channels, device=images.device)[:, None, None],
        y.clamp(0, height - 1)[:, None, :, None],
        x.clamp(0, width - 1)[:, None, None, :],
    ]
    return torch.where(inside, pixels, torch.zeros_like(pixels))


def noisy(labels: Tensor, classes: int, share: float, epoch: int = 0) -> Tensor:
    """Replace each label with probability `share` by a random class (Zhang et al., 2017).

    >>> noisy(torch.arange(5), 5, share=0.0).tolist()
    [0, 1, 2, 3, 4]
    """
    generator = numpy.random.Generator(numpy.random.Philox(key=numpy.array([DRAWS, epoch], numpy.uint64)))
    replaced = torch.from_numpy(generator.random(len(labels)) < share)
    drawn = torch.from_numpy(generator.integers(0, classes, len(labels)))
    return torch.where(replaced, drawn.to(labels.dtype), labels)
