"""CIFAR-10 and CIFAR-100 as published, in the binary or the python version."""

import hashlib
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from rankrise.foundations.errors import RankriseError
from rankrise.train._data.images import ImageData, ImagePart

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
"""By data set and version: the files, the test set last, and their published MD5."""


def read_cifar(name: str, folder: str | Path, check: bool = True) -> ImageData:
    """CIFAR-10, or CIFAR-100 with its 100 fine classes, from the version that is unpacked in `folder`."""
    version = next((version for version in FILES[name] if (Path(folder) / version).is_dir()), None)
    if version is None:
        raise RankriseError(
            f"{folder} holds neither {' nor '.join(FILES[name])}: download the binary version from {HOME} "
            "and unpack it there, or pass --data_folder."
        )

    def read(file: str) -> ImagePart:
        path = Path(folder) / version / file
        if not path.is_file():
            raise RankriseError(f"{path} is missing: download the data set again from {HOME}.")
        content = path.read_bytes()
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        published = FILES[name][version][file]
        if found != published and (check or not file.endswith(".bin")):
            # The MD5 alone makes a pickle safe to open, so that it is checked in any case.
            raise RankriseError(
                f"{path} has the MD5 {found}, not the published {published}: download it again from {HOME}."
            )
        return _binary(content, path, name) if file.endswith(".bin") else _pickled(content)

    with ThreadPoolExecutor() as executor:
        *parts, validation = executor.map(read, FILES[name][version])
    images, labels = torch.cat([part.images for part in parts]), torch.cat([part.labels for part in parts])
    return ImageData(name, ImagePart(images, labels), validation, CLASSES[name])


def _binary(content: bytes, path: Path, name: str) -> ImagePart:
    """Read records of one label byte (CIFAR-100: coarse, then fine) and 3 x 32 x 32 values."""
    labels = {"cifar10": 1, "cifar100": 2}[name]
    if not content or len(content) % (labels + 3072):
        raise RankriseError(
            f"{path} has {len(content)} bytes, not a multiple of {labels + 3072}: download it "
            f"again from {HOME}."
        )
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, labels + 3072)
    images = records[:, labels:].reshape(-1, 3, 32, 32).contiguous()
    return ImagePart(images, records[:, labels - 1].to(torch.int64))


def _pickled(content: bytes) -> ImagePart:
    """Read a pickled dictionary of `data`, uint8 [n, 3072], and `labels` (CIFAR-100: `fine_labels`)."""
    batch = pickle.loads(content, encoding="bytes")
    labels = batch[b"fine_labels"] if b"fine_labels" in batch else batch[b"labels"]
    images = torch.from_numpy(batch[b"data"].reshape(-1, 3, 32, 32).copy())
    return ImagePart(images, torch.tensor(labels, dtype=torch.int64))
