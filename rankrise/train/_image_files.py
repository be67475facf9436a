"""Images read from files: CIFAR's binary version, scikit-learn's digits, and folders of photographs."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require

DIGITS_TO_TRAIN_ON = 1500
"""The other 297 digits, by other writers, are the validation set."""
CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
CIFAR_FOLDERS = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}
CIFAR_FILES = {
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
SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")


class Images(NamedTuple):
    """Images in memory, uint8 [n, channels, side, side], and the class of each, int64 [n]."""

    pixels: Tensor
    labels: Tensor


class Photographs(NamedTuple):
    """Images in files, and the class of each."""

    paths: list[Path]
    labels: list[int]


def read_digits() -> tuple[Images, Images]:
    """scikit-learn's 1797 digits as grey images of 8 x 8, to train on and to validate."""
    digits = require("sklearn.datasets", extra="train", purpose="the digits data set").load_digits()
    pixels = torch.from_numpy(digits.images * (255 / 16)).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(digits.target).to(torch.int64)
    first = DIGITS_TO_TRAIN_ON
    return Images(pixels[:first], labels[:first]), Images(pixels[first:], labels[first:])


def read_cifar(name: str, folder: str | Path) -> tuple[Images, Images]:
    """CIFAR-10, or CIFAR-100 with its 100 fine classes, as unpacked in `folder`."""
    before = 1 if name == "cifar10" else 2  # bytes of labels: of CIFAR-100 the coarse one, then the fine one
    parts = []
    for file, published in CIFAR_FILES[name].items():
        path = Path(folder) / CIFAR_FOLDERS[name] / file
        if not path.is_file():
            raise RankriseError(
                f"{path} is missing: download the binary version from {CIFAR_HOME} and unpack it there, or "
                "pass --data_folder."
            )
        content = bytearray(path.read_bytes())
        if hashlib.md5(content, usedforsecurity=False).hexdigest() != published:
            raise RankriseError(
                f"{path} does not have the published MD5 {published}: download it again from {CIFAR_HOME}."
            )
        rows = torch.frombuffer(content, dtype=torch.uint8).view(-1, before + 3072)
        pixels = rows[:, before:].reshape(-1, 3, 32, 32).contiguous()
        parts.append(Images(pixels, rows[:, before - 1].to(torch.int64)))
    pixels, labels = (torch.cat(each) for each in zip(*parts[:-1], strict=True))
    return Images(pixels, labels), parts[-1]


def read_image_folder(folder: Path) -> tuple[Photographs, Photographs, int]:
    """The training and the validation photographs of a folder, and the number of classes.

    They lie as train/<class>/* and val/<class>/*, as ImageNet and Tiny-ImageNet are unpacked.
    """
    parts = []
    for part in ("train", "val"):
        paths = sorted(path for path in (folder / part).glob("*/*") if path.suffix.lower() in SUFFIXES)
        names = sorted({path.parent.name for path in paths})
        classes = {name: number for number, name in enumerate(names)}
        parts.append((Photographs(paths, [classes[path.parent.name] for path in paths]), names))
    (train, names), (validation, others) = parts
    if not names or names != others:
        raise RankriseError(
            f"{folder} needs photographs of the same classes as train/<class>/*.jpg and val/<class>/*.jpg: "
            "put them there, or pass --data_folder and --data_name."
        )
    return train, validation, len(names)


def opened(path: Path) -> Any:
    """A decoded photograph, as Pillow's image."""
    pillow = require("PIL.Image", extra="train", purpose="an image folder")
    try:
        picture = pillow.open(path)
        picture.load()
    except Exception as error:  # decoders fail in many ways
        raise RankriseError(f"{path} cannot be decoded ({error}): remove it or unpack it again.") from error
    return picture


def fitted(picture: Any, side: int) -> numpy.ndarray:
    """The largest square in the middle of a photograph, at size `side`. uint8 [3, side, side]"""
    width, height = picture.size
    square = min(width, height)
    left, upper = (width - square) // 2, (height - square) // 2
    return _scaled(picture, (left, upper, left + square, upper + square), side)


def random_crop(picture: Any, side: int, generator: numpy.random.Generator) -> numpy.ndarray:
    """A rectangle of 8 to 100 % of the area, between 3:4 and 4:3 in shape, at size `side`, mirrored every
    other time: the usual augmentation for ImageNet. uint8 [3, side, side]
    """
    width, height = picture.size
    for _ in range(10):
        area = width * height * generator.uniform(0.08, 1.0)
        shape = numpy.exp(generator.uniform(numpy.log(3 / 4), numpy.log(4 / 3)))
        w, h = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left = int(generator.integers(0, width - w, endpoint=True))
            upper = int(generator.integers(0, height - h, endpoint=True))
            pixels = _scaled(picture, (left, upper, left + w, upper + h), side)
            break
    else:
        pixels = fitted(picture, side)
    return numpy.ascontiguousarray(pixels[:, :, ::-1]) if generator.random() < 0.5 else pixels


def _scaled(picture: Any, box: tuple[int, int, int, int], side: int) -> numpy.ndarray:
    """A box of a photograph in RGB at size `side`. uint8 [3, side, side]"""
    picture = picture.convert("RGB")
    if box != (0, 0, side, side) or picture.size != (side, side):
        picture = picture.resize((side, side), resample=2, box=box)  # 2: bilinear, over the whole area
    return numpy.ascontiguousarray(numpy.asarray(picture).transpose(2, 0, 1))


def decoded(photographs: Photographs, side: int) -> Images:
    """All photographs at size `side`."""

    def decode(path: Path) -> Tensor:
        return torch.from_numpy(fitted(opened(path), side))

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        pixels = torch.stack(list(executor.map(decode, photographs.paths)))
    return Images(pixels, torch.tensor(photographs.labels))
