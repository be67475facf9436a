"""Text as tokens: cut once, kept in a memory-mapped file that says of which text and tokenizer it is."""

import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import replacing
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.reading import refuse_special
from rankrise.record.tensors import save
from rankrise.train._data.cache import cache_folder
from rankrise.train._data.tokenizer import Tokenizer
from rankrise.train._data.wikitext import RULES, detokenised, is_wikitext, words_in

FORMAT = "rankrise-tokens/1"
TOKENISED = ".safetensors"
PIECE = 100_000
"""Characters that are cut into tokens at once, about."""


class Text(Protocol):
    """One part of a data set of text."""

    @property
    def name(self) -> str:
        """The name of the data set."""

    @property
    def part(self) -> str:
        """train or valid."""

    @property
    def fingerprint(self) -> str:
        """Changes when the text does."""

    def read(self) -> str:
        """The whole of it."""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A part of a text as tokens."""

    name: str
    tokens: Tensor
    """uint16 [n], memory-mapped."""
    vocabulary: int
    words: int
    """Words and line ends of a text that came in WikiText's form; 0 for any other."""


def tokenised(text: Text, tokenizer: Tokenizer, meter: Meter = unseen) -> Tokens:
    """The tokens of a text, from the cache if it was tokenised before.

    The cache is a safetensors file in the user's cache folder, named by a fingerprint of text and tokenizer.
    A text in WikiText's form is detokenised first.
    """
    whole = f"{FORMAT} {text.fingerprint} {tokenizer.fingerprint} {RULES}"
    fingerprint = hashlib.sha256(whole.encode()).hexdigest()[:16]
    path = cache_folder() / f"{text.name}-{text.part}-{tokenizer.name}-{fingerprint}{TOKENISED}"
    if not path.exists():
        content = text.read()
        words = 0
        if is_wikitext(content):
            words, content = words_in(content), detokenised(content)
        tokens = _cut(content, tokenizer, f"tokenising {text.name} {text.part}", meter)
        facts = {"format": FORMAT, "text": text.fingerprint, "tokenizer": tokenizer.fingerprint}
        facts |= {"vocabulary": str(tokenizer.vocabulary), "words": str(words)}
        with replacing(path) as temporary:
            save(temporary, {"tokens": torch.from_numpy(tokens)}, facts)
    return read_tokens(path, text.name, tokenizer)


def read_tokens(path: Path, name: str, tokenizer: Tokenizer) -> Tokens:
    """A file that `tokenised` wrote, with this tokenizer."""
    refuse_special(path)
    try:
        with safe_open(path, "pt") as file:
            facts = file.metadata() or {}
            tokens = file.get_tensor("tokens")
    except (OSError, SafetensorError) as error:
        raise RankriseError(
            f"{path} cannot be read ({error}): remove it, and tokenise the text again."
        ) from error
    words = facts.get("words", "")
    if facts.get("format") != FORMAT or (tokens.dtype, tokens.ndim) != (torch.uint16, 1):
        raise RankriseError(f"{path} is not a tokenised text: remove it.")
    if facts.get("tokenizer") != tokenizer.fingerprint:
        raise RankriseError(
            f"{path} was made by another tokenizer than {tokenizer.name}: pass that one, or the text itself."
        )
    beyond = len(tokens) and int(tokens.numpy().max()) >= tokenizer.vocabulary
    if beyond or facts.get("vocabulary") != str(tokenizer.vocabulary) or not re.fullmatch(r"\d{1,18}", words):
        raise RankriseError(f"{path} is damaged: remove it, and tokenise the text again.")
    return Tokens(name, tokens, tokenizer.vocabulary, int(words))


def pieces_of(text: str, size: int = PIECE) -> Iterator[str]:
    r"""The text in pieces of `size` characters or more, whose tokens are those of the whole.

    They are cut before a line's end that something follows. There GPT-2's tokenizer always begins a new
    token: it leaves the last of several white spaces to what comes next.

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


def _cut(text: str, tokenizer: Tokenizer, description: str, meter: Meter) -> numpy.ndarray:
    pieces, parts, done = pieces_of(text), [numpy.zeros(0, numpy.uint16)], 0
    with meter(description, len(text), "characters") as move_to:
        while some := list(islice(pieces, 4 * (os.cpu_count() or 1))):
            parts += tokenizer.encode(some)
            done += sum(map(len, some))
            move_to(done)
    return numpy.concatenate(parts)
