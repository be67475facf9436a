"""Where batches of images come from: a data set that lies whole on the device, or files read when needed."""

from collections.abc import Iterator
from typing import Protocol

import numpy
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._augmentation import cut
from rankrise.train._data.images import ImageData, mean_and_deviation
from rankrise.train._data.pictures import Pictures, fitted, random_crop
from rankrise.train._labels import noisy
from rankrise.train._order import INDEX, OPERATIONS, epoch_plan, plain_plan
from rankrise.train._rand_augment import moves_of, rand_augmented

Batch = tuple[Tensor, ...]


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A copy on the device, which need not be done with its earlier work for that."""
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


class ImageSource(Protocol):
    """Batches in whatever form is quick to make, and how they become pixels on the device."""

    examples: int
    channels: int
    classes: int

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Batches of an epoch from number `first` on, of each this process's `share`."""

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """The validation set; the last batch is filled up."""

    def pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised pixels, [share, channels, side, side], and labels, [share], of a training batch."""

    def validation_pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The same of a validation batch; a label of -1 does not count."""


class DeviceImages:
    """The whole data set on the device: a batch is the rows of the epoch's plan, cut out there."""

    def __init__(self, settings: TrainSettings, data: ImageData, device: torch.device) -> None:
        size = tuple(data.train.images.shape[-2:])
        if size != (settings.image_size, settings.image_size):
            raise RankriseError(
                f"image_size is {settings.image_size}, but the images of {data.name} are "
                f"{size[1]} x {size[0]}: pass --image_size {size[0]}."
            )
        if settings.augmentation == "resized-crop-flip":
            raise RankriseError(
                "augmentation is resized-crop-flip, which needs whole photographs: pass stream true with an "
                "image folder, or augmentation crop-flip."
            )
        self.examples, self.classes = len(data.train.labels), data.classes
        self.channels = data.train.images.shape[1]
        self._seed = settings.seed
        self._margin = 0 if settings.augmentation == "none" else settings.image_size // 8
        self._mirror = settings.augmentation in ("crop-flip", "rand-augment")
        moves = moves_of(*size) if settings.augmentation == "rand-augment" else torch.empty(0)
        self._moves = moves.to(device)
        mean, deviation = mean_and_deviation(data.train.images)
        self._mean, self._deviation = mean.to(device).view(-1, 1, 1), deviation.to(device).view(-1, 1, 1)
        self._true_labels, self._label_noise = data.train.labels, settings.label_noise
        self._redraw = settings.redraw_labels
        self._images, self._labels = data.train.images.to(device), self._drawn_labels(0).to(device)
        self._validation_images = data.validation.images.to(device)
        self._validation_labels = data.validation.labels.to(device)

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Rows of the epoch's plan: which image, how it is moved, mirrored and changed; and labels, where
        they are drawn for the epoch. ([share, columns],) or ([share, columns], [share])
        """
        plan = epoch_plan(
            self.examples, self._seed, epoch, self._margin, self._mirror, operations=len(self._moves)
        )
        whole: Batch = (plan, self._drawn_labels(epoch)[plan[:, INDEX]]) if self._redraw else (plan,)
        whole = tuple(sent(tensor, self._labels.device) for tensor in whole)
        for start in range(first * batch_size, self.examples - batch_size + 1, batch_size):
            yield tuple(tensor[start : start + batch_size][share] for tensor in whole)

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
        rows, *drawn = batch
        labels = drawn[0] if drawn else self._labels[rows[:, INDEX]]
        images = cut(self._images, rows)
        if len(self._moves):
            images = rand_augmented(images, rows[:, OPERATIONS], self._moves)
        return self._normalised(images), labels

    def validation_pixels(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The images as they are."""
        rows, counts = batch
        labels = torch.where(counts, self._validation_labels[rows[:, INDEX]], -1)
        return self._normalised(cut(self._validation_images, rows)), labels

    def _drawn_labels(self, epoch: int) -> Tensor:
        return noisy(self._true_labels, self.classes, self._label_noise, epoch)

    def _normalised(self, pixels: Tensor) -> Tensor:
        return (pixels - self._mean) / self._deviation


class StreamedImages:
    """Photographs that worker processes open and scale while the device computes; pixels from -1 to 1."""

    channels = 3

    def __init__(
        self,
        settings: TrainSettings,
        train: Pictures,
        validation: Pictures,
        classes: int,
        device: torch.device,
    ) -> None:
        if settings.augmentation == "rand-augment" or settings.label_noise:
            asked = "rand-augment" if settings.augmentation == "rand-augment" else "label_noise"
            raise RankriseError(
                f"{asked} is asked for with stream yes, and streamed photographs do not have it: pass stream "
                "no, or leave it out."
            )
        self.examples, self.classes = len(train.labels), classes
        self._settings, self._device = settings, device
        self._train, self._validation = train, validation

    def batches(self, epoch: int, first: int, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images and labels. (uint8 [share, 3, side, side], [share])"""
        settings = self._settings
        margin = settings.image_size // 8 if settings.augmentation in ("crop", "crop-flip") else 0
        plan = epoch_plan(
            self.examples, settings.seed, epoch, margin, mirror=settings.augmentation == "crop-flip"
        ).tolist()
        starts = range(first * batch_size, self.examples - batch_size + 1, batch_size)
        rows = [plan[start : start + batch_size][share] for start in starts]
        return self._loaded(self._train, rows, (settings.seed, epoch))

    def validation_batches(self, batch_size: int, share: slice) -> Iterator[Batch]:
        """Decoded images and labels, -1 for those that fill up."""
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
        self, pictures: Pictures, rows: list[list[list[int]]], draw: tuple[int, int] | None
    ) -> Iterator[Batch]:
        resized = self._settings.augmentation == "resized-crop-flip"
        loader = DataLoader(
            PlannedPictures(pictures, self._settings.image_size, draw if resized else None),
            batch_sampler=rows,
            num_workers=self._settings.workers,
            pin_memory=self._device.type == "cuda",
        )
        try:
            for images, labels in loader:
                yield images.to(self._device, non_blocking=True), labels.to(self._device, non_blocking=True)
        except RankriseError as error:  # of a worker: torch puts the trace before the sentence
            raise RankriseError(str(error).rstrip().rpartition("RankriseError: ")[2]) from error


class PlannedPictures(Dataset[tuple[Tensor, int]]):
    """Photographs by the rows of a plan; with `draw`, (seed, epoch), cropped at random."""

    def __init__(self, pictures: Pictures, side: int, draw: tuple[int, int] | None) -> None:
        self.pictures, self.side, self.draw = pictures, side, draw

    def __getitem__(self, row: list[int]) -> tuple[Tensor, int]:
        index = row[INDEX]
        if index < 0:
            return torch.zeros(3, self.side, self.side, dtype=torch.uint8), -1
        picture, label = self.pictures.open(index), self.pictures.labels[index]
        if self.draw is not None:
            generator = numpy.random.Generator(
                numpy.random.Philox(key=list(self.draw), counter=[0, 0, 0, index + 1])
            )
            return torch.from_numpy(random_crop(picture, self.side, generator)), label
        image = torch.from_numpy(fitted(picture, self.side))[None]
        return cut(image, torch.tensor([[0, *row[1:]]]))[0], label
