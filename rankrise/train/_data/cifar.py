"""CIFAR-10 and CIFAR-100 in the two formats in which they are published, checked by their checksums."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy
import torch

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.reading import read_bytes
from rankrise.train._data.images import ImageData, ImagePart
from rankrise.train._data.pickled_batch import read_batch

LARGEST = 200_000_000
"""Bytes, more than any of the files has."""
HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"

CLASSES = {"cifar10": 10, "cifar100": 100}
FILES = {
    "cifar10": {
        "cifar-10-batches-bin": {
            "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
            "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
            "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
            "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
            "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
            "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
        },
        "cifar-10-batches-py": {
            "data_batch_1": "c99cafc152244af753f735de768cd75f",
            "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
            "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
            "data_batch_4": "634d18415352ddfa80567beed471001a",
            "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
            "test_batch": "40351d587109b95175f43aff81a1287e",
        },
    },
    "cifar100": {
        "cifar-100-binary": {
            "train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
            "test.bin": "4499cfba6c016c1be1438163640a0898",
        },
        "cifar-100-python": {
            "train": "16019d7e3df5f24257cddd939b257f8d",
            "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        },
    },
}
"""Data set, its folder in each format, its files (the last is the test set) and their MD5."""


def read_cifar(name: str, folder: str | Path, check: bool = True) -> ImageData:
    """CIFAR-10, or CIFAR-100 with its 100 fine classes, from the version that is unpacked in `folder`."""
    versions = FILES[name]
    version = next((version for version in versions if (Path(folder) / version).is_dir()), None)
    if version is None:
        binary, python = versions
        raise RankriseError(
            f"{folder} holds no {binary} and no {python}: download the binary version from {HOME}, unpack it "
            "there, or pass --data_folder."
        )
    files = versions[version]

    def read(file: str) -> ImagePart:
        path = Path(folder) / version / file
        content = _content(path, files[file] if check else None)
        part = _binary(content, path, name) if file.endswith(".bin") else _python(content, path)
        if not len(part.labels) or int(part.labels.max()) >= CLASSES[name]:
            raise RankriseError(
                f"{path} has no images, or labels beyond the {CLASSES[name]} classes: download it again from "
                f"{HOME}."
            )
        return part

    with ThreadPoolExecutor() as executor:
        *train, validation = executor.map(read, files)
    return ImageData(
        name,
        train=ImagePart(
            torch.cat([part.images for part in train]), torch.cat([part.labels for part in train])
        ),
        validation=validation,
        classes=CLASSES[name],
    )


def _content(path: Path, checksum: str | None) -> bytes:
    try:
        content = read_bytes(path, LARGEST)
    except OSError as error:
        raise RankriseError(f"{path} cannot be read ({error}): download it again from {HOME}.") from error
    found = hashlib.md5(content, usedforsecurity=False).hexdigest() if checksum else None
    if found != checksum:
        raise RankriseError(
            f"{path} has the MD5 {found}, not the published {checksum}: download the data set again from "
            f"{HOME}."
        )
    return content


def _binary(content: bytes, path: Path, name: str) -> ImagePart:
    """Records of one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 values."""
    labels = {"cifar10": 1, "cifar100": 2}[name]
    if not content or len(content) % (labels + 3072):
        raise RankriseError(
            f"{path} has {len(content)} bytes, which is not a whole number of records of {labels + 3072}: "
            f"download the data set again from {HOME}."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, labels + 3072)
    return ImagePart(
        records[:, labels:].reshape(-1, 3, 32, 32).contiguous(), records[:, labels - 1].to(torch.int64)
    )


def _python(content: bytes, path: Path) -> ImagePart:
    """A pickled dictionary of `data`, uint8 [n, 3072], and `labels` (CIFAR-100: `fine_labels`)."""
    try:
        batch = read_batch(content)
        labels = batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"]
        images = batch[b"data"]
        if not (isinstance(images, numpy.ndarray) and images.shape == (len(labels), 3072)):
            raise ValueError("its data are not 3072 values for each label")
        if not all(type(label) is int and 0 <= label < max(CLASSES.values()) for label in labels):
            raise ValueError("a label is not a number of a class")
    except RankriseError as error:
        raise RankriseError(f"{path} is refused: {error}") from error
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        raise RankriseError(
            f"{path} is not a batch of CIFAR's python version ({error}): download it again from {HOME}."
        ) from error
    pixels = torch.from_numpy(images.reshape(-1, 3, 32, 32).copy())
    return ImagePart(pixels, torch.tensor(labels, dtype=torch.int64))
