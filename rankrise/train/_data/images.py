"""A data set of images, whole in memory: the form that every small data set is read into."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImagePart:
    """Images, uint8 [n, channels, side, side], and the number of each one's class, int64 [n]."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, eq=False)
class ImageData:
    """A training and a validation set of `classes` classes."""

    name: str
    train: ImagePart
    validation: ImagePart
    classes: int


def mean_and_deviation(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel's values (0 to 255), exact: by counting them. [channels]

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
