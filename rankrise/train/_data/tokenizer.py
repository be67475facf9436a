"""Tokenizers: GPT-2's byte pairs, read from local files, or single bytes."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require


@dataclass(frozen=True)
class Tokenizer:
    """Turns text into numbers below `vocabulary`."""

    name: str
    fingerprint: str
    vocabulary: int
    encode: Callable[[Sequence[str]], list[numpy.ndarray]]
    """The tokens of each piece of text. uint16 [n]"""


def read_tokenizer(name: str, folder: str | Path) -> Tokenizer:
    """`bytes`, the bytes of UTF-8, or GPT-2's tokenizer with the files in `folder/name`.

    >>> read_tokenizer("bytes", "data").encode(["Rang", "é"])
    [array([ 82,  97, 110, 103], dtype=uint16), array([195, 169], dtype=uint16)]
    """
    if name == "bytes":

        def bytes_of(pieces: Sequence[str]) -> list[numpy.ndarray]:
            return [numpy.frombuffer(piece.encode(), numpy.uint8).astype(numpy.uint16) for piece in pieces]

        return Tokenizer("bytes", "bytes", 256, bytes_of)
    transformers = require("transformers", extra="train", purpose="a tokenizer")
    files = [Path(folder) / name / file for file in ("vocab.json", "merges.txt")]
    try:
        digest = hashlib.sha256(b"".join(path.read_bytes() + b"\0" for path in files)).hexdigest()
        tokenizer = transformers.GPT2TokenizerFast(vocab=str(files[0]), merges=str(files[1]))
    except Exception as error:
        raise RankriseError(
            f"{files[0].parent} has no tokenizer ({first_line(error)}): put GPT-2's vocab.json and "
            "merges.txt there, or pass --tokenizer bytes."
        ) from error
    vocabulary = len(tokenizer)
    if max(vocabulary, *tokenizer.get_vocab().values()) > 2**16:
        raise RankriseError(f"the tokenizer {name} needs more than 16 bits: pass a smaller one.")

    def encode(pieces: Sequence[str]) -> list[numpy.ndarray]:
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(list(pieces), add_special_tokens=False)
        return [numpy.array(one.ids, dtype=numpy.uint16) for one in encoded]

    return Tokenizer(files[0].parent.name, digest, vocabulary, encode)
