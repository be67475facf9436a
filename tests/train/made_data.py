"""Made-up data sets of images in their standard formats."""

import pickle
from pathlib import Path

import numpy
from PIL import Image

from rankrise.train._data.cifar import FILES


def write_cifar(folder: Path, version: str) -> tuple[numpy.ndarray, list[int]]:
    """Four images per file of one of CIFAR's versions: the images and labels of its training set."""
    name = next(name for name, versions in FILES.items() if version in versions)
    images, labels = [], []
    (folder / version).mkdir(parents=True)
    for number, file in enumerate(FILES[name][version]):
        batch = numpy.random.default_rng(number).integers(0, 256, (4, 3, 32, 32), dtype=numpy.uint8)
        classes = [(number + index) % 10 for index in range(4)]
        coarse = [] if name == "cifar10" else [99]
        if file.endswith(".bin"):
            records = zip(classes, batch, strict=True)
            content = b"".join(bytes([*coarse, label]) + image.tobytes() for label, image in records)
        else:
            key = b"labels" if name == "cifar10" else b"fine_labels"
            content = pickle.dumps({key: classes, b"data": batch.reshape(4, 3072)})
        (folder / version / file).write_bytes(content)
        images.append(batch)
        labels += classes
    return numpy.concatenate(images[:-1]), labels[:-4]


def write_photographs(folder: Path, classes: dict[str, int], held_out: int, side: int = 20) -> Path:
    """An image folder with that many photographs per class to train on, and `held_out` to validate."""
    for part in ("train", "val"):
        for name, count in classes.items():
            (folder / part / name).mkdir(parents=True)
            for number in range(count if part == "train" else held_out):
                generator = numpy.random.default_rng([number, len(part), ord(name[0])])
                pixels = generator.integers(0, 256, (side, side + 8, 3), dtype=numpy.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder
