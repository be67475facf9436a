"""The next token of a text, by GPT-2. Texts are tokenised once, into a memory-mapped file."""

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import torch
from safetensors import safe_open
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import replacing
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.record.folder import save
from rankrise.train._batches import INDEX, Task
from rankrise.train._networks import language_model

FORMAT = "rankrise-tokens/1"
PIECE = 100_000  # characters that are tokenised at once, about
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
"""Patterns and replacements that turn WikiText's form, in which punctuation stands alone, back into text."""


class Tokens(NamedTuple):
    """A text as tokens, uint16 [n], memory-mapped."""

    name: str
    tokens: Tensor
    vocabulary: int
    words: int
    """Words and line ends, if the text came in WikiText's form, else 0."""


class Tokenizer(NamedTuple):
    """Turns text into numbers below `vocabulary`."""

    fingerprint: str
    vocabulary: int
    encode: Callable[[Sequence[str]], list[numpy.ndarray]]
    """The tokens of each piece of text. uint16 [n]"""


def next_token_prediction(
    settings: TrainSettings, device: torch.device, meter: Meter
) -> "NextTokenPrediction":
    """The task on the text of the settings, tokenised."""
    folder, own, others = Path(settings.data_folder), settings.data_name, settings.also_validate
    wanted = [*others] + [own] * (settings.data == "text")
    wanted += [settings.tokenizer] * (settings.tokenizer != "bytes")
    missing = [name for name in wanted if not (folder / name).is_dir()]
    if missing:  # all at once, so that they are fetched at once
        raise RankriseError(
            f"{folder} has no folder {', '.join(missing)}: 'rankrise recipes RECIPE' says what to put there; "
            "or pass --data_folder."
        )
    tokenizer = read_tokenizer(settings.tokenizer, folder)
    if settings.data == "made-text":
        texts = [("made-text", made_text(4000, seed=1)), ("made-text", made_text(200, seed=2))]
    else:
        texts = [(own, read_text(folder / own, part)) for part in ("train", "valid")]
    texts += [(name, read_text(folder / name, "valid")) for name in others]
    train, *validation = (tokenised(name, text, tokenizer, meter) for name, text in texts)
    return NextTokenPrediction(settings, train, validation, device)


def read_text(folder: Path, part: str) -> str:
    """The file of a folder with `part` in its name, such as wiki.train.txt or valid.tokens."""
    files = [path for path in folder.iterdir() if part in re.split(r"[._-]", path.name)]
    if len(files) != 1:
        raise RankriseError(f"{folder} needs one file with {part!r} in its name, not {len(files)}.")
    return files[0].read_text(encoding="utf-8")


def made_text(stories: int, seed: int) -> str:
    """Short stories, one per line: a thing changes hands, and the end follows from the beginning."""
    generator, text = numpy.random.Generator(numpy.random.Philox(key=[seed, 0])), ""
    for _ in range(stories):
        owner, *others = generator.permutation(NAMES)[: generator.integers(2, 5)].tolist()
        colour, thing, place = (str(generator.choice(words)) for words in (COLOURS, THINGS, PLACES))
        text += f"{owner} is in the {place} with a {colour} {thing}."
        for other in others:
            text += f" {owner} gives the {colour} {thing} to {other}."
            owner = other
        text += f" Now {owner} has a {colour} {thing} in the {place}.\n"
    return text


def tokenised(name: str, text: str, tokenizer: Tokenizer, meter: Meter = unseen) -> Tokens:
    """The tokens, from the cache if the text was tokenised before. WikiText is detokenised first."""
    own = hashlib.sha256(text.encode()).hexdigest()
    whole = hashlib.sha256(f"{FORMAT} {own} {tokenizer.fingerprint} {WIKITEXT}".encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rankrise"
    path = cache / f"{name}-{whole[:16]}.safetensors"
    if not path.exists():
        words = 0
        if " @-@ " in text:  # nobody else writes that
            words = len(text.split()) + text.count("\n")
            for pattern, replacement in WIKITEXT:
                text = re.sub(pattern, replacement, text)
        pieces, tokens = list(pieces_of(text)), []
        with meter(f"tokenising {name}", len(pieces), "pieces") as move_to:
            for start in range(0, len(pieces), 100):
                tokens += tokenizer.encode(pieces[start : start + 100])
                move_to(start + 100)
        with replacing(path) as temporary:
            save(temporary, {"tokens": torch.from_numpy(numpy.concatenate(tokens))}, {"words": str(words)})
    with safe_open(path, "pt") as file:
        words = int(file.metadata()["words"])
        return Tokens(name, file.get_tensor("tokens"), tokenizer.vocabulary, words)


def pieces_of(text: str, size: int = PIECE) -> Iterator[str]:
    """Split a text into pieces of at least `size` characters whose tokens are those of the whole."""
    begin = 0  # GPT-2's tokenizer begins a new token at a line end that is followed by a word
    for end in re.finditer(r"\n(?=\S)", text):
        if end.start() >= begin + size:
            yield text[begin : end.start()]
            begin = end.start()
    yield text[begin:]


def read_tokenizer(name: str, folder: str | Path) -> Tokenizer:
    """`bytes`, the bytes of UTF-8, or GPT-2's tokenizer with the files in `folder/name`."""
    if name == "bytes":

        def bytes_of(pieces: Sequence[str]) -> list[numpy.ndarray]:
            return [numpy.frombuffer(piece.encode(), numpy.uint8).astype(numpy.uint16) for piece in pieces]

        return Tokenizer("bytes", 256, bytes_of)
    transformers = require("transformers", extra="train", purpose="a tokenizer")
    files = [Path(folder) / name / file for file in ("vocab.json", "merges.txt")]
    digest = hashlib.sha256(b"".join(path.read_bytes() + b"\0" for path in files)).hexdigest()
    tokenizer = transformers.GPT2TokenizerFast(vocab=str(files[0]), merges=str(files[1]))
    if len(tokenizer) > 2**16:
        raise RankriseError(f"the tokenizer {name} needs more than 16 bits: pass a smaller one.")

    def encode(pieces: Sequence[str]) -> list[numpy.ndarray]:
        encoded = tokenizer.backend_tokenizer.encode_batch_fast(list(pieces), add_special_tokens=False)
        return [numpy.array(one.ids, dtype=numpy.uint16) for one in encoded]

    return Tokenizer(digest, len(tokenizer), encode)


class NextTokenPrediction(Task):
    """Cross-entropy of next tokens. The text lies on the device, from which a batch's blocks are cut out."""

    takes = ("input_ids",)

    def __init__(
        self, settings: TrainSettings, train: Tokens, validation_sets: Sequence[Tokens], device: torch.device
    ) -> None:
        length = settings.sequence_length
        self.examples, self.units_per_example = (len(train.tokens) - 1) // length, length
        if self.examples < 1 or any(len(one.tokens) < 2 for one in validation_sets):
            raise RankriseError(f"{train.name}: a text is shorter than sequence_length, {length}, or empty.")
        self.settings, self.device = settings, device
        self._vocabulary, self._validation_sets = train.vocabulary, validation_sets
        # Where each block starts, how many targets it has, and its validation set; the last row is padding.
        # Every token of a validation set but its first is a target once; its last block may be short.
        blocks = [(number * length, length, 0) for number in range(self.examples)]
        begin = len(train.tokens)
        for number, one in enumerate(validation_sets):
            last = len(one.tokens) - 1
            blocks += [(begin + start, min(length, last - start), number) for start in range(0, last, length)]
            begin += len(one.tokens)
        self.held_out = len(blocks) - self.examples
        self._blocks = torch.tensor([*blocks, (0, 0, 0)], device=device)
        parts = [one.tokens.to(torch.int32) for one in (train, *validation_sets)]
        self._tokens = torch.cat([*parts, torch.zeros(length, dtype=torch.int32)]).to(device)
        self._places = torch.arange(length + 1, device=device)

    def model(self) -> nn.Module:
        return language_model(self.settings, self._vocabulary)

    def read(self, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets, -1 for none. Both int64 [share, length]"""
        start, count, _ = self._blocks[batch[0][:, INDEX]].unbind(1)
        tokens = self._tokens[start[:, None] + self._places]
        targets = torch.where(self._places[1:] <= count[:, None], tokens[:, 1:].long(), -1)
        return tokens[:, :-1].long(), targets

    def judged(self, model: Any, inputs: Tensor, answers: Tensor) -> tuple[Tensor, ...]:
        """Cross-entropy of each target, 0 for -1; compiled, no logits are in float32. ([share, length],)"""
        logits = model(input_ids=inputs).logits[..., : self._vocabulary].float().flatten(0, 1)
        losses = nn.functional.cross_entropy(logits, answers.flatten(), ignore_index=-1, reduction="none")
        return (losses.view_as(answers),)

    def score(self, model: Any, *batch: Tensor) -> Tensor:
        """For each validation set, the number of targets and the sum of their losses. [2 sets]"""
        inputs, targets = self.read(*batch)
        losses = self.judged(model, inputs, targets)[0].detach()
        sums = torch.stack([(targets >= 0).sum(1).double(), losses.sum(1).double()], 1)
        nothing = sums.new_zeros(len(self._validation_sets), 2)
        return nothing.index_add(0, self._blocks[batch[0][:, INDEX], 2], sums).flatten()

    def metrics(self, sums: Tensor) -> dict[str, Tensor]:
        """Perplexity and mean loss of the validation set; perplexities of other sets, by name."""
        numbers: dict[str, Tensor] = {}
        sets = zip(self._validation_sets, sums.view(-1, 2), strict=True)
        for number, (tokens, (count, losses)) in enumerate(sets):
            name = f"/{tokens.name}" if number else ""
            numbers[f"perplexity{name}"] = (losses / count).exp()
            if tokens.words:
                numbers[f"word_perplexity{name}"] = (losses / tokens.words).exp()
            if number == 0:
                numbers["validation_loss"] = losses / count
        return numbers
