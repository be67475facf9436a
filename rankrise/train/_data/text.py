"""Texts: files in a folder, or a data set on the Hugging Face hub, by part."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require
from rankrise.foundations.reading import refuse_special
from rankrise.train._data.tokenizer import Tokenizer
from rankrise.train._data.tokens import TOKENISED, Text, Tokens, read_tokens


@dataclass(frozen=True)
class FileText:
    """A UTF-8 file."""

    name: str
    part: str
    path: Path

    @property
    def fingerprint(self) -> str:
        """A checksum of its bytes."""
        refuse_special(self.path)
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def read(self) -> str:
        """The file."""
        try:
            return self.path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RankriseError(f"{self.path} is not UTF-8 text ({error}): convert it.") from error


def read_text_folder(folder: Path, parts: Sequence[str], tokenizer: Tokenizer) -> list[Text | Tokens]:
    """The files of a folder that have the parts' names in theirs, such as wiki.train.txt or valid.tokens.

    A file that was tokenised before (from the cache, with its own name) may stand in for a text.
    """
    found: list[Text | Tokens] = []
    for part in parts:
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        files = [path for path in files if path.is_file() and part in re.split(r"[._-]", path.name)]
        texts = [path for path in files if path.suffix != TOKENISED] or files
        if len(texts) != 1:
            raise RankriseError(
                f"{folder} has {len(texts)} files with {part!r} in their names, such as wiki.{part}.txt: put "
                "one there, or pass another folder."
            )
        if texts[0].suffix == TOKENISED:
            found.append(read_tokens(texts[0], folder.name, tokenizer))
        else:
            found.append(FileText(folder.name, part, texts[0]))
    return found


class HubText:
    """One split of a data set that has a text column; a row is a line or several."""

    def __init__(self, name: str, part: str, rows: Any) -> None:
        if "text" not in rows.features:
            raise RankriseError(
                f"{name} has the columns {', '.join(rows.features)}, of which one should be text: pass "
                "another data_name."
            )
        self.name, self.part, self.fingerprint = name, part, str(rows._fingerprint)
        self._rows = rows

    def read(self) -> str:
        """The rows, each with a line's end."""
        return "".join(row if row.endswith("\n") else f"{row}\n" for row in self._rows["text"])


def read_hugging_face_text(name: str) -> tuple[HubText, HubText]:
    """The training and the validation set of `owner/name` or `owner/name:configuration`."""
    datasets = require("datasets", extra="datasets", purpose="a Hugging Face data set")
    place, _, configuration = name.partition(":")
    try:
        parts = datasets.load_dataset(place, configuration or None)
    except Exception as error:
        raise RankriseError(
            f"the data set {name} cannot be loaded ({first_line(error)}): go online, or pass data text with "
            "files of your own."
        ) from error
    if "train" not in parts or "validation" not in parts:
        raise RankriseError(f"{name} has the splits {', '.join(parts)}: pass one with train and validation.")
    short = configuration or place.rpartition("/")[2]
    return HubText(short, "train", parts["train"]), HubText(short, "valid", parts["validation"])
