"""The task of the paper's vision transformers: the class of an image."""

from copy import copy
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._data.cifar import read_cifar
from rankrise.train._data.digits import read_digits
from rankrise.train._data.hugging_face import read_hugging_face
from rankrise.train._data.image_folder import read_image_folder
from rankrise.train._data.images import ImageData, ImagePart
from rankrise.train._data.pictures import Pictures, decoded
from rankrise.train._sources import DeviceImages, ImageSource, StreamedImages
from rankrise.train._vision_model import vision_transformer


class ImageClassification:
    """Classes of images by a vision transformer and cross-entropy."""

    name = "image classification"
    units_per_example = 1

    def __init__(self, settings: TrainSettings, source: ImageSource) -> None:
        self.examples = source.examples
        self.batches, self.validation_batches = source.batches, source.validation_batches
        self._settings, self._source = settings, source
        self._pixels, self._validation_pixels, self._judged = source.pixels, source.validation_pixels, judged

    def compiled(self, compile: Any) -> Self:
        """The same task by compiled functions: the network is in one, for training and validation alike."""
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
        """How many examples there are, how many are classified right, and the sum of their losses. [3]"""
        pixels, labels = self._validation_pixels(*batch)
        losses, right = self._judged(model, pixels, labels)
        sums = (labels >= 0).sum(), right.sum(), losses.detach().sum()
        return torch.stack([value.double() for value in sums])

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """Accuracy, and the mean loss of the validation set."""
        return {"accuracy": sums[1] / sums[0], "validation_loss": sums[2] / sums[0]}


def judged(model: Any, pixels: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of each image, 0 where the label is -1, and whether its class is found. Both [share]"""
    logits = model(pixel_values=pixels).logits.float()
    losses = nn.functional.cross_entropy(logits, labels, ignore_index=-1, reduction="none")
    return losses, logits.argmax(1) == labels


def image_classification(
    settings: TrainSettings, device: torch.device, meter: Meter = unseen
) -> ImageClassification:
    """The task on the data that the settings name, read and checked."""
    if settings.data in ("image-folder", "hugging-face"):
        train, validation, classes = _photographs(settings)
        if settings.stream:
            source = StreamedImages(settings, train, validation, classes, device)
            return ImageClassification(settings, source)
        training, held_out = (
            ImagePart(decoded(part, settings.image_size, meter), torch.tensor(part.labels))
            for part in (train, validation)
        )
        data = ImageData(settings.data_name, training, held_out, classes)
    elif settings.data == "digits":
        data = read_digits()
    else:
        data = read_cifar(settings.data, settings.data_folder, settings.check_data)
    return ImageClassification(settings, DeviceImages(settings, data, device))


def _photographs(settings: TrainSettings) -> tuple[Pictures, Pictures, int]:
    """The training and the validation set of a data set of photographs, and the number of its classes."""
    if settings.data == "image-folder":
        return read_image_folder(Path(settings.data_folder) / settings.data_name)
    return read_hugging_face(settings.data_name)
