"""A data set of small images, whole in memory, and scikit-learn's handwritten digits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.optional import require

DIGITS_TO_TRAIN_ON = 1500
"""The other 297 digits, by other writers, are the validation set."""


@dataclass(frozen=True, eq=False)
class ImagePart:
    """Images, uint8 [n, channels, side, side], and the class of each, int64 [n]."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class ImageData:
    """A training and a validation set of `classes` classes."""

    name: str
    train: ImagePart
    validation: ImagePart
    classes: int


def read_digits() -> ImageData:
    """scikit-learn's 1797 digits as grey images of 8 x 8, their 17 grey levels spread over 0 to 255."""
    digits = require("sklearn.datasets", extra="train", purpose="the digits data set").load_digits()
    images = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    train = ImagePart(images[:DIGITS_TO_TRAIN_ON], labels[:DIGITS_TO_TRAIN_ON])
    validation = ImagePart(images[DIGITS_TO_TRAIN_ON:], labels[DIGITS_TO_TRAIN_ON:])
    return ImageData("digits", train, validation, classes=10)


def mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Exact mean and standard deviation of each channel's values (0 to 255), by counting them. [channels]

    >>> mean_and_deviation(torch.tensor([[[[0, 2]], [[4, 4]]]], dtype=torch.uint8))
    (tensor([1., 4.]), tensor([1., 1.]))
    """
    values = torch.arange(256, dtype=torch.float64)
    means, deviations = [], []
    for channel in images.unbind(1):
        share = torch.bincount(channel.flatten(), minlength=256).double() / channel.numel()
        mean = (share * values).sum()
        deviation = (share * (values - mean) ** 2).sum().sqrt()
        means.append(mean)
        deviations.append(deviation if deviation > 0 else torch.ones_like(deviation))
    return torch.stack(means).float(), torch.stack(deviations).float()
