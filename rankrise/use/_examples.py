"""A user's own data as batches for a transformers model: a text, lines of JSON, or a folder of images."""

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise.foundations.counted import counted
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require
from rankrise.foundations.passed import shown
from rankrise.foundations.reading import PICTURES, refuse_special
from rankrise.use._models import is_causal, is_classifier
from rankrise.use._sampled import IGNORED, labelled
from rankrise.watch._config import offline

Example = dict[str, Tensor]
"""What a model takes of one example, without a dimension for the batch, and its `labels`."""

LONGEST = 512
"""Tokens in an example at most."""


def read_examples(
    path: str | Path, model: Any, checkpoint: str | Path, at_most: int, at_once: int
) -> list[Example]:
    """Up to `at_most` examples from a file or folder, prepared as the checkpoint's own tokenizer or image
    processor does; the model is tried on the first `at_once` of them.

    A `.jsonl` file has a "text" per line, and a "label" for a classifier: its number, or its name in the
    model's config. Any other file is running text for a causal model, and is cut into blocks. A folder has
    one folder of images per class.
    """
    path = Path(path)
    if not path.exists():
        raise RankriseError(
            f"There is no data at {str(path)!r}: give a text file, a .jsonl file, an image folder, "
            "or a recipe's name ('rankrise recipes' lists them)."
        )
    if path.is_dir():
        if model.main_input_name == "input_ids":
            raise RankriseError(
                f"{str(path)!r} is a folder, and {type(model).__name__} reads text: give a text file or a "
                '.jsonl file whose lines have a "text".'
            )
        found = list(_pictures(path, model, checkpoint, at_most))
    elif model.main_input_name == "pixel_values":
        raise RankriseError(
            f"{str(path)!r} is a file, and {type(model).__name__} reads images: give a folder with one "
            "folder of images per class, or the recipe that it was trained by."
        )
    elif is_running_text(path):
        found = list(_blocks(path, model, checkpoint, at_most))
    else:
        found = list(_lines(path, model, checkpoint, at_most))
    if len(found) < 2:
        raise RankriseError(f"{str(path)!r} holds {counted(len(found), 'example')}: pass at least 2.")
    _refuse_unusable(found, path, model, checkpoint, at_once)
    return found


def is_running_text(path: str | Path) -> bool:
    """Whether a file or folder is read as one text, whose lines are no examples."""
    return Path(path).is_file() and Path(path).suffix not in (".jsonl", ".json")


def _refuse_unusable(
    examples: Sequence[Example], path: Path, model: Any, checkpoint: str | Path, at_once: int
) -> None:
    """Refuse examples that the model cannot take, as where its tokenizer is another model's."""
    if "input_ids" in examples[0]:
        known = model.get_input_embeddings().num_embeddings
        most = max(int(example["input_ids"].max()) for example in examples)
        if most >= known:
            raise RankriseError(
                f"{str(checkpoint)!r} has a tokenizer with a token {most}, and a model of {known}: save the "
                "model's own tokenizer beside it."
            )
    advice = f"save the model's own tokenizer or image processor in {str(checkpoint)!r}"
    if at_once > 1 and "input_ids" in examples[0] and _padding(model) is None:
        advice += ", give its config a pad_token_id, or take one example at a time (--batch_size 1)"
    refuse_untakable(model, next(batched(examples, at_once, model)), repr(str(path)), advice)


def refuse_other_predictions(model: Any) -> None:
    """Refuse a model whose loss is another than those that are measured on data here."""
    if not is_causal(model) and not is_classifier(model):
        raise RankriseError(
            f"{type(model).__name__} predicts neither each next token nor one class, and no other loss is "
            "measured on --data: leave it out where that can be, or call rankrise.use from Python with a "
            "loss of your own."
        )


def refuse_untakable(model: Any, batch: Example, said: str, advice: str) -> None:
    """Refuse a batch that the model cannot take; `said` is where it comes from."""
    try:
        with torch.no_grad():
            labelled(model, batch)
    except RankriseError:
        raise
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        why = first_line(error).rstrip(".")
        raise RankriseError(
            f"{type(model).__name__} cannot take the data of {said} ({why}): {advice}."
        ) from error


def unknown_share(examples: Sequence[Example], checkpoint: str | Path) -> float:
    """The share of the tokens of texts that the checkpoint's tokenizer does not know; 0 of images."""
    if "input_ids" not in examples[0]:
        return 0.0
    tokenizer = _tokenizer(checkpoint)
    unknown = tokenizer.get_vocab().get(tokenizer.unk_token)  # unk_token_id recurses where it is not in there
    tokens = torch.cat([example["input_ids"] for example in examples])
    return 0.0 if unknown is None else float((tokens == unknown).float().mean())


def batched(examples: Sequence[Example], size: int, model: Any) -> Iterator[Example]:
    """Batches on the model's device; shorter texts are masked and filled up with its padding token, by which
    a classifier that reads from left to right knows where a text ends."""
    device, filling = next(model.parameters()).device, {"labels": IGNORED}
    padding = _padding(model)
    if padding is not None and "input_ids" in examples[0]:
        known = 0 <= padding < model.get_input_embeddings().num_embeddings
        filling["input_ids"] = padding if known else 0
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        longest = max(len(each["input_ids"]) for each in part) if "input_ids" in part[0] else 0
        batch = {}
        for name in part[0]:
            rows = [
                torch.nn.functional.pad(
                    each[name], (0, longest - len(each[name])), value=filling.get(name, 0)
                )
                if each[name].ndim == 1
                else each[name]
                for each in part
            ]
            batch[name] = torch.stack(rows).to(device)
        yield batch


def _padding(model: Any) -> int | None:
    found: int | None = getattr(model.config, "pad_token_id", None)
    return found


def predictions(batch: Example, model: Any) -> int:
    """How many predictions the mean loss of a batch is of."""
    if is_causal(model):
        return int(batch["attention_mask"][:, 1:].sum())
    return len(next(iter(batch.values())))


def _blocks(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> Iterator[Example]:
    if not is_causal(model):
        raise RankriseError(
            f"{str(path)!r} is a plain text, and {type(model).__name__} needs labels: give a .jsonl file "
            'whose lines have a "text" and a "label".'
        )
    length = _length(model)
    text = _text(path)[: at_most * length * 16]
    encoded = _encoded(_tokenizer(checkpoint), checkpoint, text, add_special_tokens=False, verbose=False)
    tokens = torch.tensor(encoded["input_ids"])
    for start in range(0, min(len(tokens) - 1, at_most * length), length):
        block = tokens[start : start + length]
        yield {"input_ids": block, "attention_mask": torch.ones_like(block)}


def _lines(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> Iterator[Example]:
    tokenizer, length = _tokenizer(checkpoint), _length(model)
    classes = _named_classes(model)
    # not splitlines: JSON may hold the other signs that end a line
    lines = ((number, line) for number, line in enumerate(_text(path).split("\n"), 1) if line.strip())
    count = cut = 0
    for number, line in islice(lines, at_most):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise RankriseError(
                f'{str(path)!r} is not JSON in line {number}: give one JSON object per line, with "text".'
            ) from error
        if not isinstance(row, dict) or "text" not in row:
            raise RankriseError(
                f'{str(path)!r} has no "text" in line {number}: give one JSON object per line, with "text".'
            )
        text = row["text"]
        if not _is_text(text):
            raise RankriseError(
                f'{str(path)!r} has {shown(text)} as the "text" in line {number}, which is not a text: give '
                "one JSON string."
            )
        encoded = _encoded(tokenizer, checkpoint, text, truncation=True, max_length=length)
        if len(encoded["input_ids"]) < (2 if is_causal(model) else 1):
            what = "without a token to predict" if is_causal(model) else "without a token"
            raise RankriseError(
                f"{str(path)!r} has a text {what} in line {number}, {text!r:.30}: give a longer one."
            )
        count += 1
        if len(encoded["input_ids"]) == length:
            cut += len(_encoded(tokenizer, checkpoint, text, verbose=False)["input_ids"]) > length
        example = {name: torch.tensor(value) for name, value in encoded.items()}
        if not is_causal(model):
            label = row.get("label")
            found = classes.get(label) if isinstance(label, str) else label
            if type(found) is not int or not 0 <= found < model.config.num_labels:
                raise RankriseError(
                    f"{str(path)!r} has the label {label!r} in line {number}: give a class of the model, "
                    f"0 to {model.config.num_labels - 1}."
                )
            example["labels"] = torch.tensor(found)
        yield example
    if cut:
        warnings.warn(
            f"{cut} of {counted(count, 'text')} in {str(path)!r} {'is' if cut == 1 else 'are'} longer than "
            f"{length} tokens, and cut to that length.",
            stacklevel=2,
        )


def _is_text(value: object) -> bool:
    """Whether it is a string of whole characters: JSON can hold half of one."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _pictures(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> Iterator[Example]:
    transformers = require("transformers", extra="transformers", purpose="An image processor")
    image = require("PIL.Image", extra="train", purpose="An image folder")
    names = sorted(each.name for each in path.iterdir() if each.is_dir())
    classes = _classes(path, names, model)
    try:
        with _as_it_lies(checkpoint):
            prepare = transformers.AutoImageProcessor.from_pretrained(checkpoint, trust_remote_code=False)
    except Exception as error:
        raise RankriseError(
            f"{str(checkpoint)!r} has no image processor ({type(error).__name__}): save one beside the "
            "model, or pass the recipe that it was trained by as the data."
        ) from error
    files = [[f for f in sorted((path / name).iterdir()) if f.suffix.lower() in PICTURES] for name in names]
    rounds = (
        (name, of_class[place])
        for place in range(max((len(of_class) for of_class in files), default=0))
        for name, of_class in zip(names, files, strict=True)
        if place < len(of_class)
    )
    for count, (name, file) in enumerate(rounds):
        if count == at_most:
            return
        refuse_special(file)
        try:
            with image.open(file) as opened:
                picture = opened.convert("RGB")
        except Exception as error:  # decoders fail in many ways
            raise RankriseError(f"{str(file)!r} cannot be decoded ({error}): remove it.") from error
        try:
            pixels = prepare(picture, return_tensors="pt")["pixel_values"][0]
        except Exception as error:  # a processor is a user's file
            raise RankriseError(
                f"the image processor of {str(checkpoint)!r} fails on {str(file)!r} "
                f"({type(error).__name__}): restore it, or remove the image."
            ) from error
        yield {"pixel_values": pixels, "labels": torch.tensor(classes[name])}


def _classes(path: Path, names: list[str], model: Any) -> dict[str, int]:
    """Folders by the model's own names of classes; in order where their number is that of its classes."""
    known = _named_classes(model)
    if names and all(name in known for name in names):
        return {name: known[name] for name in names}
    if len(names) == model.config.num_labels:
        return {name: number for number, name in enumerate(names)}
    raise RankriseError(
        f"{str(path)!r} has {len(names)} folders, and the model {model.config.num_labels} classes: give a "
        "folder per class."
    )


def _named_classes(model: Any) -> dict[str, int]:
    """The numbers of classes by the model's own names for them, without those that it does not have."""
    named, count = model.config.label2id, model.config.num_labels
    pairs = named.items() if isinstance(named, dict) else ()
    return {str(name): number for name, number in pairs if type(number) is int and 0 <= number < count}


def _tokenizer(checkpoint: str | Path) -> Any:
    transformers = require("transformers", extra="transformers", purpose="A tokenizer")
    try:
        with _as_it_lies(checkpoint):
            tokenizer = transformers.AutoTokenizer.from_pretrained(checkpoint, trust_remote_code=False)
        tried = tokenizer("a text")["input_ids"]  # a damaged one may fail here
        tokenizer("a text", truncation=True, max_length=8)
    except Exception as error:
        raise RankriseError(
            f"{str(checkpoint)!r} has no tokenizer that can be read ({type(error).__name__}): save it beside "
            "the model."
        ) from error
    if not tried:  # where its files are missing, transformers makes an empty one
        raise RankriseError(f"{str(checkpoint)!r} has no tokenizer: save it beside the model.")
    return tokenizer


def _encoded(tokenizer: Any, checkpoint: str | Path, text: str, **how: Any) -> Any:
    """A text in tokens; a tokenizer may lack one for a word, and one for unknown words too."""
    try:
        return tokenizer(text, **how)
    except Exception as error:
        raise RankriseError(
            f"the tokenizer of {str(checkpoint)!r} fails on {text!r:.30} ({first_line(error)}): save the "
            "model's own beside it."
        ) from error


def _as_it_lies(checkpoint: str | Path) -> AbstractContextManager[None]:
    """Of a folder, nothing is asked of the Hub, whatever its files name."""
    return offline() if Path(checkpoint).is_dir() else nullcontext()


def _length(model: Any) -> int:
    """Tokens in an example at most; a config may say that there is no end of them, as by -1."""
    places = getattr(model.config, "max_position_embeddings", None)
    return min(LONGEST, places) if isinstance(places, int) and places > 1 else LONGEST


def _text(path: Path) -> str:
    refuse_special(path)
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RankriseError(f"{str(path)!r} is not text ({error.reason}): give UTF-8.") from error
