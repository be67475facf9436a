"""Texts from files or made on the spot, tokenised once into a memory-mapped file."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy
import torch
from safetensors import safe_open
from torch import Tensor

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.files import replacing
from rankrise.foundations.optional import require
from rankrise.record.folder import save

FORMAT = "rankrise-tokens/1"
PIECE = 100_000
"""Characters that are tokenised at once, about."""
NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Felix", "Greta", "Hugo")
COLOURS = ("red", "green", "blue", "black", "white", "yellow")
THINGS = ("ball", "book", "cup", "hat", "key", "lamp", "coin", "spoon")
PLACES = ("garden", "kitchen", "market", "school", "station")
WIKITEXT = (
    (r" @([-,.])@ ", r"\1"),  # well @-@ known, 1 @,@ 000, 0 @.@ 7
    (r" '(s|t|re|ve|ll|d|m)\b", r"'\1"),  # the lobster 's, don 't
    (r"(?<=s) '(?= )", r"'"),  # the lobsters ' claws
    (r'" ([^"\n]*?) "', r'"\1"'),  # " lobster red "
    (r"([(\[{]) ", r"\1"),
    (r" ([)\]}])", r"\1"),
    (r" ([.,;:!?%])(?=\s)", r"\1"),
    (r"([$£€]) (?=\d)", r"\1"),
    (r"= (?==)", "="),  # = = Description = =
    (r"(?m)^ +| +$", ""),
)
"""Patterns and replacements that turn WikiText's form, in which punctuation stands alone, back into text.

Cached tokens depend on them."""


class Text(NamedTuple):
    """One part of a data set of text: "train" or "valid"."""

    name: str
    part: str
    content: str


class Tokenizer(NamedTuple):
    """Turns text into numbers below `vocabulary`."""

    name: str
    fingerprint: str
    vocabulary: int
    encode: Callable[[Sequence[str]], list[numpy.ndarray]]
    """The tokens of each piece of text. uint16 [n]"""


class Tokens(NamedTuple):
    """A part of a text as tokens."""

    name: str
    tokens: Tensor
    """uint16 [n], memory-mapped."""
    vocabulary: int
    words: int
    """Words and line ends, if the text came in WikiText's form, else 0."""


def tokenised(text: Text, tokenizer: Tokenizer) -> Tokens:
    """The tokens, from the cache if the text was tokenised before. WikiText is detokenised first."""
    name, part, content = text
    own = hashlib.sha256(content.encode()).hexdigest()
    whole = hashlib.sha256(f"{FORMAT} {own} {tokenizer.fingerprint} {WIKITEXT}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rankrise"
    path = cache / f"{name}-{part}-{tokenizer.name}-{whole[:16]}.safetensors"
    if not path.exists():
        words = 0
        if " @-@ " in content:  # nobody else writes that
            words = len(content.split()) + content.count("\n")
            content = detokenised(content)
        tokens = torch.from_numpy(numpy.concatenate(tokenizer.encode(list(pieces_of(content)))))
        with replacing(path) as temporary:
            save(temporary, {"tokens": tokens}, {"words": str(words)})
    with safe_open(path, "pt") as file:
        words = int(file.metadata()["words"])
        return Tokens(name, file.get_tensor("tokens"), tokenizer.vocabulary, words)


def read_text_folder(folder: Path, part: str) -> Text:
    """The file of a folder with `part` in its name, such as wiki.train.txt or valid.tokens."""
    files = [path for path in sorted(folder.iterdir()) if part in re.split(r"[._-]", path.name)]
    if len(files) != 1:
        raise RankriseError(
            f"{folder} has {len(files)} files with {part!r} in their names, such as wiki.{part}.txt: put one "
            "there, or pass another folder."
        )
    return Text(folder.name, part, files[0].read_text(encoding="utf-8"))


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
        return Text("made-text", part, text)

    return [made("train", stories=4000, seed=1), made("valid", stories=200, seed=2)]


def detokenised(text: str) -> str:
    """WikiText as people write, as far as rules can tell; single quotation marks and dashes stay.

    >>> detokenised(' The lobster \\'s well @-@ known " claws " ( 0 @.@ 7 kg ) , it is said , break . ')
    'The lobster\\'s well-known "claws" (0.7 kg), it is said, break.'
    """
    for pattern, replacement in WIKITEXT:
        text = re.sub(pattern, replacement, text)
    return text


def pieces_of(text: str, size: int = PIECE) -> Iterator[str]:
    r"""Split a text into pieces of at least `size` characters whose tokens are those of the whole.

    It is cut only before a line end that is followed by a word, where GPT-2's tokenizer begins a new token.

    >>> list(pieces_of("one\ntwo\n\nthree\n", size=2))
    ['one', '\ntwo\n', '\nthree\n']
    """
    begin = 0
    for end in re.finditer(r"\n(?=\S)", text):
        if end.start() >= begin + size:
            yield text[begin : end.start()]
            begin = end.start()
    yield text[begin:]


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
    if len(tokenizer) > 2**16:
        raise RankriseError(f"the tokenizer {name} needs more than 16 bits: pass a smaller one.")

    def encode(pieces: Sequence[str]) -> list[numpy.ndarray]:
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(list(pieces), add_special_tokens=False)
        return [numpy.array(one.ids, dtype=numpy.uint16) for one in encoded]

    return Tokenizer(files[0].parent.name, digest, len(tokenizer), encode)
