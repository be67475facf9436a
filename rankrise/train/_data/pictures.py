"""Photographs that lie in files: opened one by one, brought to one size, or decoded once into a cache."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol

import numpy
import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import replacing
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.reading import refuse_special
from rankrise.train._data.cache import cache_folder


class Pictures(Protocol):
    """One part of a data set of photographs."""

    name: str
    fingerprint: str
    """Changes when the photographs do."""

    @property
    def labels(self) -> Sequence[int]:
        """The number of each photograph's class."""

    def open(self, index: int) -> Any:
        """The photograph as Pillow has it."""


def fitted(picture: Any, side: int) -> numpy.ndarray:
    """The largest square in the middle of a photograph, at size `side`. uint8 [3, side, side]"""
    width, height = picture.size
    square = min(width, height)
    left, upper = (width - square) // 2, (height - square) // 2
    return scaled(picture, (left, upper, left + square, upper + square), side)


def random_crop(picture: Any, side: int, generator: numpy.random.Generator) -> numpy.ndarray:
    """A rectangle of 8 to 100 % of a photograph's area, between 3:4 and 4:3 in shape, brought to size `side`
    and mirrored every other time: the usual augmentation for ImageNet. uint8 [3, side, side]
    """
    width, height = picture.size
    for _ in range(10):
        area = width * height * generator.uniform(0.08, 1.0)
        shape = numpy.exp(generator.uniform(numpy.log(3 / 4), numpy.log(4 / 3)))
        w, h = round((area * shape) ** 0.5), round((area / shape) ** 0.5)
        if 0 < w <= width and 0 < h <= height:
            left = int(generator.integers(0, width - w, endpoint=True))
            upper = int(generator.integers(0, height - h, endpoint=True))
            pixels = scaled(picture, (left, upper, left + w, upper + h), side)
            break
    else:
        pixels = fitted(picture, side)
    return numpy.ascontiguousarray(pixels[:, :, ::-1]) if generator.random() < 0.5 else pixels


def scaled(picture: Any, box: tuple[int, int, int, int], side: int) -> numpy.ndarray:
    """A box of a photograph in three colours at size `side`. uint8 [3, side, side]"""
    picture = picture.convert("RGB")
    if box != (0, 0, side, side) or picture.size != (side, side):
        picture = picture.resize((side, side), resample=2, box=box)  # 2: bilinear, over the whole area
    return numpy.ascontiguousarray(numpy.asarray(picture).transpose(2, 0, 1))


def decoded(pictures: Pictures, side: int, meter: Meter = unseen) -> Tensor:
    """All photographs at size `side`, from the cache if they were decoded before. uint8 [n, 3, side, side]

    The cache is a memory-mapped .npy file in the user's cache folder, named by the fingerprint.
    """
    path = cache_folder() / f"{pictures.name}-{side}-{pictures.fingerprint[:16]}.npy"
    shape = (len(pictures.labels), 3, side, side)
    if not path.exists():
        with replacing(path) as temporary, meter(f"decoding {pictures.name}", shape[0], "images") as move_to:
            images = numpy.lib.format.open_memmap(temporary, "w+", numpy.uint8, shape)

            def decode(index: int) -> None:
                images[index] = fitted(pictures.open(index), side)

            with ThreadPoolExecutor(os.cpu_count()) as executor:
                for done, _ in enumerate(executor.map(decode, range(shape[0])), start=1):
                    move_to(done)
            images.flush()
    return torch.from_numpy(_kept(path, shape))


def _kept(path: Path, shape: tuple[int, ...]) -> numpy.ndarray:
    """The images in a file of the cache."""
    refuse_special(path)
    try:
        images = numpy.load(path, mmap_mode="c")
        known = (images.dtype, images.shape) == (numpy.uint8, shape)
    except (OSError, ValueError, EOFError, SyntaxError, AttributeError, TokenError):  # its header is Python
        known = False
    if not known:
        raise RankriseError(f"{path} is damaged: remove it, and the photographs are decoded again.")
    return images
