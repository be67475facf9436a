"""An image folder: train/<class>/* and val/<class>/*, as ImageNet and Tiny-ImageNet are unpacked."""

import hashlib
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.reading import PICTURES, refuse_special


class FolderPictures:
    """The photographs of a folder with one folder per class; classes are numbered in the order given."""

    def __init__(self, folder: Path, classes: list[str]) -> None:
        self._image = require("PIL.Image", extra="train", purpose="an image folder")
        self.name = f"{folder.parent.name}-{folder.name}"
        self._paths: list[Path] = []
        self.labels: list[int] = []
        digest = hashlib.sha256()
        for number, name in enumerate(classes):
            paths = sorted(path for path in (folder / name).iterdir() if path.suffix.lower() in PICTURES)
            for path in paths:
                status = path.stat()
                told = f"{name}/{path.name} {status.st_size} {status.st_mtime_ns}\n"
                digest.update(told.encode("utf-8", "surrogateescape"))  # names may be no text
            self._paths += paths
            self.labels += [number] * len(paths)
        self.fingerprint = digest.hexdigest()

    def open(self, index: int) -> Any:
        """The photograph as Pillow has it."""
        path = self._paths[index]
        try:
            refuse_special(path)
            picture = self._image.open(path)
            picture.load()
        except RankriseError:
            raise
        except Exception as error:  # decoders fail in many ways
            raise RankriseError(
                f"{path} cannot be decoded ({error}): remove it or unpack it again."
            ) from error
        return picture


def read_image_folder(folder: str | Path) -> tuple[FolderPictures, FolderPictures, int]:
    """The training and the validation photographs of a folder, and the number of its classes."""
    folder = Path(folder)
    train, validation = folder / "train", folder / "val"
    if not train.is_dir() or not validation.is_dir():
        raise RankriseError(
            f"{folder} has no train and val folders: put the photographs there as train/<class>/*.jpg and "
            "val/<class>/*.jpg, or pass --data_folder and --data_name."
        )
    classes = sorted(path.name for path in train.iterdir() if path.is_dir())
    missing = [name for name in classes if not (validation / name).is_dir()]
    if missing or not classes:
        raise RankriseError(
            f"{validation} has no folder {missing[0] if missing else 'at all'}: it needs one for every class "
            f"of {train}."
        )
    parts = FolderPictures(train, classes), FolderPictures(validation, classes)
    for path, part in zip((train, validation), parts, strict=True):
        if not part.labels:
            raise RankriseError(
                f"{path} holds no photographs: put {', '.join(PICTURES)} files into its folders."
            )
    return *parts, len(classes)
