"""The class of an image, by a vision transformer.

A data set that fits lies on the device, where each batch is cut out of it; photographs may also be read from
files while training.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.progress import Meter
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import (
    DOWN,
    INDEX,
    MIRRORED,
    OPERATIONS,
    RIGHT,
    Batch,
    Task,
    epoch_plan,
    plain_plan,
    sent,
    shares,
)
from rankrise.train._data.images import ImageData, ImagePart, mean_and_deviation, read_cifar, read_digits
from rankrise.train._data.photographs import (
    Photographs,
    decoded,
    fitted,
    random_crop,
    read_hugging_face,
    read_image_folder,
)
from rankrise.train._networks import vision_transformer
from rankrise.train._rand_augment import moves_of, picked, rand_augmented

DRAWS = 2**63 + 1
"""Key of the random labels, apart from every seed: runs of all seeds have the same wrong labels."""


def image_classification(settings: TrainSettings, device: torch.device, meter: Meter) -> "ImageTask":
    """The task on the data of the settings."""
    if settings.data == "digits":
        return DeviceImages(settings, read_digits(), device)
    if settings.data in ("cifar10", "cifar100"):
        data = read_cifar(settings.data, settings.data_folder, settings.check_data)
        return DeviceImages(settings, data, device)
    if settings.data == "image-folder":
        parts = read_image_folder(Path(settings.data_folder) / settings.data_name)
    else:
        parts = read_hugging_face(settings.data_name)
    if settings.stream:
        return StreamedImages(settings, *parts, device)
    train, validation, classes = parts
    training, held_out = (
        ImagePart(decoded(part, settings.image_size, meter), torch.tensor(part.labels))
        for part in (train, validation)
    )
    return DeviceImages(settings, ImageData(settings.data_name, training, held_out, classes), device)


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
                "augmentation resized-crop-flip needs whole photographs: pass --stream yes with an image "
                "folder, or --augmentation crop-flip."
            )
        self.settings, self.classes, self.examples = settings, data.classes, len(data.train.labels)
        self._margin = 0 if settings.augmentation == "none" else settings.image_size // 8
        self._mirror = settings.augmentation in ("crop-flip", "rand-augment")
        moves = moves_of(height, width) if settings.augmentation == "rand-augment" else torch.empty(0)
        self._moves = moves.to(device)
        mean, deviation = mean_and_deviation(data.train.images)
        self._mean, self._deviation = mean.to(device).view(-1, 1, 1), deviation.to(device).view(-1, 1, 1)
        self._true_labels = data.train.labels
        self._images, self._labels = data.train.images.to(device), self._labels_in(0).to(device)
        self._validation_images = data.validation.images.to(device)
        self._validation_labels = data.validation.labels.to(device)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the plan; also labels, if they are redrawn. ([share, columns],) or (…, [share])"""
        seed, operations = self.settings.seed, len(self._moves)
        plan = epoch_plan(self.examples, seed, epoch, self._margin, self._mirror, operations)
        whole: Batch = (plan,)
        if self.settings.redraw_labels:
            whole = plan, self._labels_in(epoch)[plan[:, INDEX]]
        whole = tuple(sent(tensor, self._labels.device) for tensor in whole)
        yield from zip(*(shares(tensor, first, batch_size, share) for tensor in whole), strict=True)

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the plain plan, and which of them count. ([share, 4], [share])"""
        plan = plain_plan(len(self._validation_labels)).to(self._labels.device)
        for rows in plan.split(batch_size):
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
        return (images - self._mean) / self._deviation, labels

    def validation_pixels(self, rows: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
        """The images without augmentation."""
        labels = torch.where(counts, self._validation_labels[rows[:, INDEX]], -1)
        return (cut(self._validation_images, rows) - self._mean) / self._deviation, labels

    def _labels_in(self, epoch: int) -> Tensor:
        return noisy(self._true_labels, self.classes, self.settings.label_noise, epoch)


class StreamedImages(ImageTask):
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
                "streamed photographs have neither rand-augment nor label_noise: leave these out, or pass "
                "--stream no."
            )
        self.settings, self.classes, self.examples = settings, classes, len(train.labels)
        self._train, self._validation, self._device = train, validation, device

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images, uint8 [share, 3, side, side], and labels, [share]."""
        kind, seed = self.settings.augmentation, self.settings.seed
        margin = self.settings.image_size // 8 if kind in ("crop", "crop-flip") else 0
        plan = epoch_plan(self.examples, seed, epoch, margin, mirror=kind == "crop-flip")
        rows = [part.tolist() for part in shares(plan, first, batch_size, share)]
        return self._loaded(self._train, rows, (seed, epoch) if kind == "resized-crop-flip" else None)

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images and labels; the label of padding is -1."""
        plan = plain_plan(len(self._validation.labels)).tolist()
        plan += [[-1, 0, 0, 0]] * (-len(plan) % batch_size)
        rows = [plan[start : start + batch_size][share] for start in range(0, len(plan), batch_size)]
        return self._loaded(self._validation, rows, None)

    def pixels(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Scale the values."""
        return images / 127.5 - 1.0, labels

    validation_pixels = pixels

    def _loaded(
        self, pictures: Photographs, rows: list[list[list[int]]], draw: tuple[int, int] | None
    ) -> Iterator[Batch]:
        loader = DataLoader(
            _Planned(pictures, self.settings.image_size, draw),
            batch_sampler=rows,
            num_workers=self.settings.workers,
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
    height, width = images.shape[2:]
    column = torch.arange(width, device=images.device)
    column = torch.where(rows[:, MIRRORED, None] > 0, width - 1 - column, column) + rows[:, RIGHT, None]
    row = torch.arange(height, device=images.device) + rows[:, DOWN, None]
    return picked(images, rows[:, INDEX], row[:, :, None], column[:, None, :])


def noisy(labels: Tensor, classes: int, share: float, epoch: int = 0) -> Tensor:
    """Replace each label with probability `share` by a random class (Zhang et al., 2017).

    >>> noisy(torch.arange(5), 5, share=0.0).tolist()
    [0, 1, 2, 3, 4]
    """
    generator = numpy.random.Generator(numpy.random.Philox(key=numpy.array([DRAWS, epoch], numpy.uint64)))
    replaced = torch.from_numpy(generator.random(len(labels)) < share)
    drawn = torch.from_numpy(generator.integers(0, classes, len(labels)))
    return torch.where(replaced, drawn.to(labels.dtype), labels)
