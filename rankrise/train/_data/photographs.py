"""Photographs in files or on the Hugging Face Hub: opened one by one, or decoded once into a cache."""

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import replacing
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen

SUFFIXES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")


@dataclass(frozen=True)
class Photographs:
    """One part of a data set of photographs."""

    name: str
    labels: Sequence[int]
    """The class of each photograph."""
    fingerprint: str
    """Changes when the photographs do."""
    open: Callable[[int], Any]
    """Opens a photograph by its number, as Pillow's image."""


def read_image_folder(folder: str | Path) -> tuple[Photographs, Photographs, int]:
    """The training and the validation photographs of a folder, and the number of classes.

    They lie as train/<class>/* and val/<class>/*, as ImageNet and Tiny-ImageNet are unpacked.
    """
    train, validation = Path(folder) / "train", Path(folder) / "val"
    if not train.is_dir() or not validation.is_dir():
        raise RankriseError(
            f"{folder} has no train and val folders: put the photographs there as train/<class>/*.jpg and "
            "val/<class>/*.jpg, or pass --data_folder and --data_name."
        )
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    return _in_folder(train, classes), _in_folder(validation, classes), len(classes)


def _in_folder(folder: Path, classes: list[str]) -> Photographs:
    """A folder with one folder per class; classes are numbered in the given order."""
    paths: list[Path] = []
    labels: list[int] = []
    digest = hashlib.sha256()
    for number, name in enumerate(classes):
        if not (folder / name).is_dir():
            raise RankriseError(f"{folder} has no folder {name}: it needs one for each class.")
        inside = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in SUFFIXES)
        for path in inside:
            status = path.stat()
            line = f"{name}/{path.name} {status.st_size} {status.st_mtime_ns}\n"
            digest.update(line.encode("utf-8", "surrogateescape"))  # file names may be any bytes
        paths += inside
        labels += [number] * len(inside)
    if not paths:
        raise RankriseError(f"{folder} has no photographs: put {', '.join(SUFFIXES)} into its folders.")
    name = f"{folder.parent.name}-{folder.name}"
    return Photographs(name, labels, digest.hexdigest(), partial(_open_file, paths))


def _open_file(paths: Sequence[Path], index: int) -> Any:
    pillow = require("PIL.Image", extra="train", purpose="an image folder")
    try:
        picture = pillow.open(paths[index])
        picture.load()
    except Exception as error:  # decoders fail in many ways
        raise RankriseError(
            f"{paths[index]} cannot be decoded ({error}): remove it or unpack it again."
        ) from error
    return picture


def read_hugging_face(name: str) -> tuple[Photographs, Photographs, int]:
    """The training and the validation photographs of a data set of the Hub, and the number of classes."""
    parts = load_hub(name)
    held_out = next((split for split in ("validation", "val", "valid", "test") if split in parts), None)
    if "train" not in parts or held_out is None:
        raise RankriseError(f"{name} has the splits {', '.join(parts)}: pass one with train and validation.")
    features = parts["train"].features
    kinds = {type(feature).__name__: column for column, feature in reversed(features.items())}
    if not {"Image", "ClassLabel"} <= kinds.keys():
        raise RankriseError(
            f"{name} has the columns {', '.join(features)}, but needs an image and a class: pass another "
            "data_name."
        )

    def photographs(part: str, rows: Any) -> Photographs:
        return Photographs(
            f"{name}-{part}".replace("/", "-"),
            list(rows[kinds["ClassLabel"]]),
            str(rows._fingerprint),
            partial(_open_row, rows.select_columns([kinds["Image"]]), kinds["Image"]),
        )

    train, validation = photographs("train", parts["train"]), photographs("val", parts[held_out])
    return train, validation, features[kinds["ClassLabel"]].num_classes


def _open_row(rows: Any, column: str, index: int) -> Any:
    return rows[index][column]


def load_hub(name: str, configuration: str | None = None) -> Any:
    """A data set of the Hugging Face Hub, by split."""
    datasets = require("datasets", extra="datasets", purpose="a Hugging Face data set")
    try:
        return datasets.load_dataset(name, configuration)
    except Exception as error:
        raise RankriseError(
            f"the data set {name} cannot be loaded ({first_line(error)}): go online, accept its terms on "
            "huggingface.co if it has any, or use files of your own."
        ) from error


def fitted(picture: Any, side: int) -> numpy.ndarray:
    """The largest square in the middle of a photograph, at size `side`. uint8 [3, side, side]"""
    width, height = picture.size
    square = min(width, height)
    left, upper = (width - square) // 2, (height - square) // 2
    return scaled(picture, (left, upper, left + square, upper + square), side)


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
            pixels = scaled(picture, (left, upper, left + w, upper + h), side)
            break
    else:
        pixels = fitted(picture, side)
    return numpy.ascontiguousarray(pixels[:, :, ::-1]) if generator.random() < 0.5 else pixels


def scaled(picture: Any, box: tuple[int, int, int, int], side: int) -> numpy.ndarray:
    """A box of a photograph in RGB at size `side`. uint8 [3, side, side]"""
    picture = picture.convert("RGB")
    if box != (0, 0, side, side) or picture.size != (side, side):
        picture = picture.resize((side, side), resample=2, box=box)  # 2: bilinear, over the whole area
    return numpy.ascontiguousarray(numpy.asarray(picture).transpose(2, 0, 1))


def cache_folder() -> Path:
    """Cache directory for decoded photographs and tokenised texts."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rankrise"


def decoded(pictures: Photographs, side: int, meter: Meter = unseen) -> Tensor:
    """All photographs at size `side`, memory-mapped from the cache. uint8 [n, 3, side, side]"""
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
    return torch.from_numpy(numpy.load(path, mmap_mode="c"))
