"""The task of vision transformers: the class of an image."""

from copy import copy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._data.cifar import read_cifar
from rankrise.train._data.images import ImageData, ImagePart, read_digits
from rankrise.train._data.photographs import decoded, read_hugging_face, read_image_folder
from rankrise.train._image_batches import DeviceImages, StreamedImages
from rankrise.train._vision_model import vision_transformer


class ImageClassification:
    """Classes of images by a vision transformer and cross-entropy."""

    name = "image classification"
    units_per_example = 1

    def __init__(self, settings: TrainSettings, source: DeviceImages | StreamedImages) -> None:
        self.examples = source.examples
        self.batches, self.validation_batches = source.batches, source.validation_batches
        self._settings, self._source = settings, source
        self._pixels, self._validation_pixels, self._judged = source.pixels, source.validation_pixels, judged

    def compiled(self, compile: Any) -> Self:
        """The same task with compiled functions."""
        task = copy(self)
        task._pixels, task._validation_pixels = compile(self._pixels), compile(self._validation_pixels)
        task._judged = compile(self._judged)
        return task

    def model(self) -> nn.Module:
        """The vision transformer of the settings."""
        return vision_transformer(self._settings, self._source.channels, self._source.classes)

    def loss(self, model: Any, *batch: Tensor) -> Tensor:
        """Cross-entropy."""
        losses, _ = self._judged(model, *self._pixels(*batch))
        mean: Tensor = losses.mean()
        return mean

    def inputs(self, *batch: Tensor) -> dict[str, Tensor]:
        """Pixels and labels of a training batch."""
        pixels, labels = self._pixels(*batch)
        return {"pixel_values": pixels, "labels": labels}

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """Numbers of images and of correct classes, and the sum of losses. [3]"""
        pixels, labels = self._validation_pixels(*batch)
        losses, right = self._judged(model, pixels, labels)
        sums = (labels >= 0).sum(), right.sum(), losses.detach().sum()
        return torch.stack([value.double() for value in sums])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """Accuracy and mean loss of the validation set."""
        return {"accuracy": sums[1] / sums[0], "validation_loss": sums[2] / sums[0]}


def judged(model: Any, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each image, 0 if its label is -1, and whether its class is found. Both [share]"""
    logits = model(pixel_values=pixels).logits.float()
    losses = nn.functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
    return losses, logits.argmax(1) == labels


def image_classification(settings: TrainSettings, device: torch.device, meter: Meter) -> ImageClassification:
    """The task on the data of the settings."""
    if settings.data == "digits":
        data = read_digits()
    elif settings.data in ("cifar10", "cifar100"):
        data = read_cifar(settings.data, settings.data_folder, settings.check_data)
    else:
        if settings.data == "image-folder":
            found = read_image_folder(Path(settings.data_folder) / settings.data_name)
        else:
            found = read_hugging_face(settings.data_name)
        train, validation, classes = found
        if settings.stream:
            return ImageClassification(settings, StreamedImages(settings, train, validation, classes, device))
        training, held_out = (
            ImagePart(decoded(part, settings.image_size, meter), torch.tensor(part.labels))
            for part in (train, validation)
        )
        data = ImageData(settings.data_name, training, held_out, classes)
    return ImageClassification(settings, DeviceImages(settings, data, device))
