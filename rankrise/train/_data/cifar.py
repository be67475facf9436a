"""CIFAR-10 and CIFAR-100 as published, in the binary version."""

import hashlib
from pathlib import Path

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.train._data.images import ImageData, ImagePart

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
