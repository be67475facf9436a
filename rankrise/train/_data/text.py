"""Texts from files or the Hugging Face Hub, tokenised once into a memory-mapped file."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import replacing
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen
from rankrise.record.folder import save
from rankrise.train._data.photographs import cache_folder, load_hub
from rankrise.train._data.wikitext import RULES, detokenised, words_in

FORMAT = "rankrise-tokens/1"
PIECE = 100_000
"""Characters that are tokenised at once, about."""
NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
COLOURS = ("red", "green", "blue", "black", "white", "yellow")
THINGS = ("ball", "book", "cup", "hat", "key", "lamp", "coin", "spoon")
PLACES = ("garden", "kitchen", "market", "school", "station")


@dataclass(frozen=True)
class Tokenizer:
    """Turns text into numbers below `vocabulary`."""

    name: str
    fingerprint: str
    vocabulary: int
    encode: Callable[[Sequence[str]], list[numpy.ndarray]]
    """The tokens of each piece of text. uint16 [n]"""


@dataclass(frozen=True, eq=False)
class Tokens:
    """A part of a text as tokens."""

    name: str
    tokens: Tensor
    """uint16 [n], memory-mapped."""
    vocabulary: int
    words: int
    """Words and line ends, if the text came in WikiText's form, else 0."""


@dataclass(frozen=True)
class Text:
    """One part of a data set of text."""

    name: str
    part: str
    """train or valid."""
    fingerprint: str
    """Changes when the text does."""
    read: Callable[[], str]
    tokens_file: Path | None = None
    """A tokenised file from the cache, which stands in for the text."""

    def tokenised(self, tokenizer: Tokenizer, meter: Meter = unseen) -> Tokens:
        """The tokens, from the cache if the text was tokenised before. WikiText is detokenised first."""
        whole = f"{FORMAT} {self.fingerprint} {tokenizer.fingerprint} {RULES}"
        fingerprint = hashlib.sha256(whole.encode()).hexdigest()[:16]
        name = f"{self.name}-{self.part}-{tokenizer.name}-{fingerprint}.safetensors"
        path = self.tokens_file or cache_folder() / name
        if not path.exists():
            content, words = self.read(), 0
            if " @-@ " in content:  # nobody else writes that
                words, content = words_in(content), detokenised(content)
            parts, done, pieces = [numpy.zeros(0, numpy.uint16)], 0, pieces_of(content)
            with meter(f"tokenising {self.name} {self.part}", len(content), "characters") as move_to:
                while some := list(islice(pieces, 4 * (os.cpu_count() or 1))):
                    parts += tokenizer.encode(some)
                    done += sum(map(len, some))
                    move_to(done)
            facts = {"format": FORMAT, "text": self.fingerprint, "tokenizer": tokenizer.fingerprint}
            facts |= {"vocabulary": str(tokenizer.vocabulary), "words": str(words)}
            with replacing(path) as temporary:
                save(temporary, {"tokens": torch.from_numpy(numpy.concatenate(parts))}, facts)
        try:
            with safe_open(path, "pt") as file:
                facts, tokens = file.metadata() or {}, file.get_tensor("tokens")
        except (OSError, SafetensorError) as error:
            raise RankriseError(
                f"{path} is damaged ({error}): remove it to tokenise the text again."
            ) from error
        if facts.get("tokenizer") != tokenizer.fingerprint:
            raise RankriseError(f"{path} was made by another tokenizer than {tokenizer.name}: pass that one.")
        return Tokens(self.name, tokens, tokenizer.vocabulary, int(facts["words"]))


def read_text_folder(folder: Path, part: str) -> Text:
    """The file of a folder with `part` in its name, such as wiki.train.txt or valid.tokens.

    A tokenised file from the cache may take the place of a text.
    """
    files = [path for path in sorted(folder.iterdir()) if part in re.split(r"[._-]", path.name)]
    files = [path for path in files if path.suffix != ".safetensors"] or files
    if len(files) != 1:
        raise RankriseError(
            f"{folder} has {len(files)} files with {part!r} in their names, such as wiki.{part}.txt: put one "
            "there, or pass another folder."
        )
    (path,) = files
    with path.open("rb") as file:
        fingerprint = hashlib.file_digest(file, "sha256").hexdigest()

    def read() -> str:
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RankriseError(f"{path} is not UTF-8 text ({error}): convert it.") from error

    return Text(folder.name, part, fingerprint, read, path if path.suffix == ".safetensors" else None)


def read_hugging_face_text(name: str) -> list[Text]:
    """The training and the validation set of `owner/name` or `owner/name:configuration` on the Hub."""
    place, _, configuration = name.partition(":")
    parts = load_hub(place, configuration or None)

    def text(part: str, split: str) -> Text:
        if split not in parts or "text" not in parts[split].features:
            raise RankriseError(f"{name} has no {split} split with a column text: pass another data_name.")
        rows: Any = parts[split]

        def read() -> str:
            return "".join(row if row.endswith("\n") else f"{row}\n" for row in rows["text"])

        return Text(configuration or place.rpartition("/")[2], part, str(rows._fingerprint), read)

    return [text("train", "train"), text("valid", "validation")]


def made_text() -> list[Text]:
    """Short stories by a few rules: 4000 to train on and 200 to validate, one per line.

    A thing changes hands; the end says who has what and where, which follows from the beginning.
    """

    def made(part: str, stories: int, seed: int) -> Text:
        generator, text = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])), ""
        for _ in range(stories):
            owner, *others = generator.permutation(NAMES)[: generator.integers(2, 5)].tolist()
            colour, thing, place = (str(generator.choice(words)) for words in (COLOURS, THINGS, PLACES))
            text += f"{owner} is in the {place} with a {colour} {thing}."
            for other in others:
                text += f" {owner} gives the {colour} {thing} to {other}."
                owner = other
            text += f" Now {owner} has a {colour} {thing} in the {place}.\n"
        return Text("made-text", part, hashlib.sha256(text.encode()).hexdigest(), lambda: text)

    return [made("train", stories=4000, seed=1), made("valid", stories=200, seed=2)]


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
