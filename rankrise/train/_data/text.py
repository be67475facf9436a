"""Texts from files or the Hugging Face Hub, turned into tokens once and kept in a memory-mapped file."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import replacing
from rankrise.foundations.progress import Meter, unseen
from rankrise.record.tensors import save
from rankrise.train._data.photographs import cache_folder, load_hub
from rankrise.train._data.tokenizer import Tokenizer
from rankrise.train._data.wikitext import RULES, detokenised, is_wikitext, words_in

FORMAT = "rankrise-tokens/1"
TOKENISED = ".safetensors"
PIECE = 100_000
"""Characters that are tokenised at once, about."""


@dataclass(frozen=True)
class Text:
    """One part of a data set of text."""

    name: str
    part: str
    """train or valid."""
    fingerprint: str
    """Changes when the text does."""
    read: Callable[[], str]


@dataclass(frozen=True, eq=False)
class Tokens:
    """A part of a text as tokens."""

    name: str
    tokens: Tensor
    """uint16 [n], memory-mapped."""
    vocabulary: int
    words: int
    """Words and line ends, if the text came in WikiText's form, else 0."""


def read_text_folder(folder: Path, part: str, tokenizer: Tokenizer) -> Text | Tokens:
    """The file of a folder with `part` in its name, such as wiki.train.txt or valid.tokens.

    A tokenised file from the cache may take the place of a text.
    """
    files = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [path for path in files if path.is_file() and part in re.split(r"[._-]", path.name)]
    files = [path for path in files if path.suffix != TOKENISED] or files
    if len(files) != 1:
        raise RankriseError(
            f"{folder} has {len(files)} files with {part!r} in their names, such as wiki.{part}.txt: put one "
            "there, or pass another folder."
        )
    if files[0].suffix == TOKENISED:
        return read_tokens(files[0], folder.name, tokenizer)
    with files[0].open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()

    def read() -> str:
        try:
            return files[0].read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RankriseError(f"{files[0]} is not UTF-8 text ({error}): convert it.") from error

    return Text(folder.name, part, fingerprint, read)


def read_hugging_face_text(name: str) -> tuple[Text, Text]:
    """The training and the validation set of `owner/name` or `owner/name:configuration` on the Hub."""
    place, _, configuration = name.partition(":")
    parts = load_hub(place, configuration or None)
    if "train" not in parts or "validation" not in parts:
        raise RankriseError(f"{name} has the splits {', '.join(parts)}: pass one with train and validation.")

    def text(part: str, rows: Any) -> Text:
        if "text" not in rows.features:
            raise RankriseError(
                f"{name} has the columns {', '.join(rows.features)}, but needs text: pass another data_name."
            )

        def read() -> str:
            return "".join(row if row.endswith("\n") else f"{row}\n" for row in rows["text"])

        return Text(configuration or place.rpartition("/")[2], part, str(rows._fingerprint), read)

    return text("train", parts["train"]), text("valid", parts["validation"])


def tokenised(text: Text, tokenizer: Tokenizer, meter: Meter = unseen) -> Tokens:
    """The tokens of a text, from the cache if it was tokenised before. WikiText is detokenised first."""
    whole = f"{FORMAT} {text.fingerprint} {tokenizer.fingerprint} {RULES}"
    fingerprint = hashlib.sha256(whole.encode()).hexdigest()[:16]
    path = cache_folder() / f"{text.name}-{text.part}-{tokenizer.name}-{fingerprint}{TOKENISED}"
    if not path.exists():
        content, words = text.read(), 0
        if is_wikitext(content):
            words, content = words_in(content), detokenised(content)
        parts, done, pieces = [numpy.zeros(0, numpy.uint16)], 0, pieces_of(content)
        with meter(f"tokenising {text.name} {text.part}", len(content), "characters") as move_to:
            while some := list(islice(pieces, 4 * (os.cpu_count() or 1))):
                parts += tokenizer.encode(some)
                done += sum(map(len, some))
                move_to(done)
        facts = {"format": FORMAT, "text": text.fingerprint, "tokenizer": tokenizer.fingerprint}
        facts |= {"vocabulary": str(tokenizer.vocabulary), "words": str(words)}
        with replacing(path) as temporary:
            save(temporary, {"tokens": torch.from_numpy(numpy.concatenate(parts))}, facts)
    return read_tokens(path, text.name, tokenizer)


def read_tokens(path: Path, name: str, tokenizer: Tokenizer) -> Tokens:
    """A file that `tokenised` wrote with this tokenizer."""
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            tokens = file.get_tensor("tokens")
    except (OSError, SafetensorError) as error:
        raise RankriseError(f"{path} is damaged ({error}): remove it to tokenise the text again.") from error
    if facts.get("format") != FORMAT:
        raise RankriseError(f"{path} is not a tokenised text: remove it.")
    if facts["tokenizer"] != tokenizer.fingerprint:
        raise RankriseError(
            f"{path} was made by another tokenizer than {tokenizer.name}: pass that one, or the text itself."
        )
    return Tokens(name, tokens, tokenizer.vocabulary, int(facts["words"]))


def pieces_of(text: str, size: int = PIECE) -> Iterator[str]:
    r"""Split a text into pieces of at least `size` characters whose tokens are those of the whole.

    It is cut only before a line end that is followed by a word, where GPT-2's tokenizer begins a new token.

    >>> list(pieces_of("one\ntwo\n\nthree\n", size=2))
    ['one', '\ntwo\n', '\nthree\n']
    """
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + size)
        while 0 <= end < len(text) and text[end + 1 : end + 2].isspace():
            end = text.find("\n", end + 1)
        if end < 0 or end + 1 == len(text):
            end = len(text)
        yield text[begin:end]
        begin = end
