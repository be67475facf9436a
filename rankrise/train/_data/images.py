"""Small images, whole in memory: CIFAR in its published binary version, and scikit-learn's digits."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require

DIGITS_TO_TRAIN_ON = 1500
"""The other 297 digits, by other writers, are the validation set."""
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
CLASSES = {"cifar10": 10, "cifar100": 100}
FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
FILES = {
    "cifar10": {
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
    "cifar100": {
        "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
        "test.bin": "4499cfba6c016c1be1438163640a0898",
    },
}
"""The files, the test set last, and their published MD5."""


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


def read_cifar(name: str, folder: str | Path, check: bool = True) -> ImageData:
    """CIFAR-10, or CIFAR-100 with its 100 fine classes, as unpacked in `folder`."""
    *parts, validation = (
        _read(Path(folder) / FOLDERS[name] / file, name, md5 if check else None)
        for file, md5 in FILES[name].items()
    )
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    return ImageData(name, ImagePart(images, labels), validation, CLASSES[name])


def _read(path: Path, name: str, published: str | None) -> ImagePart:
    """Read records of one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 values."""
    if not path.is_file():
        raise RankriseError(
            f"{path} is missing: download the binary version from {HOME} and unpack it there, or pass "
            "--data_folder."
        )
    content = bytearray(path.read_bytes())
    if published and hashlib.md5(content, usedforsecurity=False).hexdigest() != published:
        raise RankriseError(f"{path} has not the published MD5 {published}: download it again from {HOME}.")
    labels = {"cifar10": 1, "cifar100": 2}[name]
    if not content or len(content) % (labels + 3072):
        raise RankriseError(f"{path} is incomplete: download it again from {HOME}.")
    records = torch.frombuffer(content, dtype=torch.uint8).view(-1, labels + 3072)
    images = records[:, labels:].reshape(-1, 3, 32, 32).contiguous()
    return ImagePart(images, records[:, labels - 1].to(torch.int64))


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
