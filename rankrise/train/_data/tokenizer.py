"""What cuts text into tokens: byte pairs as GPT-2's files say, from local files, or single bytes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require

LARGEST = 2**16
"""Tokens are kept as uint16."""


class Tokenizer(Protocol):
    """Numbers below `vocabulary` for pieces of text."""

    name: str
    fingerprint: str
    vocabulary: int

    def encode(self, pieces: Sequence[str]) -> list[numpy.ndarray]:
        """The tokens of each piece. uint16 [n]"""


class Bytes:
    """The bytes of UTF-8.

    >>> Bytes().encode(["Rang", "é"])
    [array([ 82,  97, 110, 103], dtype=uint16), array([195, 169], dtype=uint16)]
    """

    name = fingerprint = "bytes"
    vocabulary = 256

    def encode(self, pieces: Sequence[str]) -> list[numpy.ndarray]:
        """One token per byte."""
        return [numpy.frombuffer(piece.encode(), numpy.uint8).astype(numpy.uint16) for piece in pieces]


class BytePairs:
    """GPT-2's tokenizer with the `vocab.json` and `merges.txt` of a folder."""

    def __init__(self, folder: Path) -> None:
        transformers = require("transformers", extra="train", purpose="a tokenizer")
        files = folder / "vocab.json", folder / "merges.txt"
        for path in files:
            if not path.is_file():
                raise RankriseError(
                    f"{path} is not there: put GPT-2's vocab.json and merges.txt into {folder}, or pass "
                    "--tokenizer bytes."
                )
        digest = hashlib.sha256()
        try:
            for path in files:
                digest.update(path.read_bytes() + b"\0")
            tokenizer = transformers.GPT2TokenizerFast(vocab=str(files[0]), merges=str(files[1]))
        except Exception as error:
            raise RankriseError(
                f"{folder} holds no tokenizer ({first_line(error)}): put GPT-2's vocab.json and merges.txt "
                "there, or pass --tokenizer bytes."
            ) from error
        self.name, self.fingerprint, self.vocabulary = folder.name, digest.hexdigest(), len(tokenizer)
        if self.vocabulary > LARGEST:
            raise RankriseError(
                f"the tokenizer in {folder} has {self.vocabulary} tokens: pass one of {LARGEST} or fewer."
            )
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest >= self.vocabulary:
            raise RankriseError(
                f"{files[0]} numbers a token {largest}, and has {self.vocabulary} tokens: number them from 0 "
                "on without a gap."
            )
        self._tokenizer = tokenizer.backend_tokenizer

    def encode(self, pieces: Sequence[str]) -> list[numpy.ndarray]:
        """Computed on all cores."""
        encoded = self._tokenizer.encode_batch_fast(list(pieces), add_special_tokens=False)
        return [numpy.array(one.ids, dtype=numpy.uint16) for one in encoded]


def read_tokenizer(name: str, folder: str | Path) -> Tokenizer:
    """`bytes`, or GPT-2's tokenizer with the files in `folder/name`."""
    return Bytes() if name == "bytes" else BytePairs(Path(folder) / name)
