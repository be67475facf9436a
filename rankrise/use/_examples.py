"""A user's own text or images as examples, prepared by the checkpoint's tokenizer or image processor."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.use._gathered import IGNORED
from rankrise.use._weights import is_causal
from rankrise.watch._pretrained import offline

Example = dict[str, Tensor]
"""The inputs of one example, without a batch dimension, and its `labels`."""

PICTURES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
"""The suffixes of files that are read as pictures."""

LONGEST = 512
"""The most tokens in an example."""


def read_examples(path: str | Path, model: Any, checkpoint: str | Path, at_most: int) -> list[Example]:
    """Read examples from a .jsonl file, a running text or an image folder."""
    path = Path(path)
    reads_images = model.main_input_name == "pixel_values"
    if not path.exists():
        raise RankriseError(f"There is no data at {str(path)!r}: 'rankrise recipes' lists the recipes.")
    if path.is_dir() != reads_images:
        wanted = "a folder with one folder of images per class" if reads_images else "a text or .jsonl file"
        raise RankriseError(f"{type(model).__name__} needs {wanted}: pass one in place of {str(path)!r}.")
    if is_running_text(path):
        found = _blocks(path, model, checkpoint, at_most)
    else:
        found = list(islice((_pictures if reads_images else _lines)(path, model, checkpoint), at_most))
    if len(found) < 2:
        raise RankriseError(f"{str(path)!r} holds {len(found)} examples: pass at least 2.")
    return found


def batched(examples: Sequence[Example], size: int, model: Any) -> Iterator[Example]:
    """Batches on the model's device, shorter texts masked and padded.

    The padding is the model's own token, by which a left-to-right classifier finds the end of a text.
    """
    device = next(model.parameters()).device
    padding = model.config.pad_token_id if "input_ids" in examples[0] else None
    known = padding is not None and 0 <= padding < model.get_input_embeddings().num_embeddings
    filling = {"labels": IGNORED, "input_ids": padding if known else 0}
    for start in range(0, len(examples), size):
        part, batch = examples[start : start + size], {}
        for name in part[0]:
            rows = [each[name] for each in part]
            if rows[0].ndim == 1:
                longest = max(map(len, rows))
                fill = filling.get(name, 0)
                rows = [nn.functional.pad(row, (0, longest - len(row)), value=fill) for row in rows]
            batch[name] = torch.stack(rows).to(device)
        yield batch


def is_running_text(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".jsonl", ".json")


def is_classifier(model: Any) -> bool:
    """Whether a model predicts one class for a text, image, video or sound."""
    return re.search("For(Sequence|Image|Video|Audio)Classification", type(model).__name__) is not None


def _blocks(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> list[Example]:
    """The beginning of a text, cut into blocks of tokens."""
    if not is_causal(model):
        raise RankriseError(
            f"{str(path)!r} is running text, and {type(model).__name__} needs labels: pass a .jsonl file "
            'whose lines have a "text" and a "label".'
        )
    tokenizer, length = _prepared(checkpoint, "AutoTokenizer"), _length(model)
    text = _text(path)[: at_most * length * 16]  # more characters than tokens ever take
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    starts = range(0, min(len(tokens) - 1, at_most * length), length)
    blocks = [tokens[start : start + length] for start in starts]
    return [{"input_ids": block, "attention_mask": torch.ones_like(block)} for block in blocks]


def _lines(path: Path, model: Any, checkpoint: str | Path) -> Iterator[Example]:
    """The lines of a .jsonl file, each with a "text", and with a "label" for a classifier."""
    tokenizer, length, classes = _prepared(checkpoint, "AutoTokenizer"), _length(model), _classes(model)
    for number, line in enumerate(_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            example = tokenizer(row["text"], truncation=True, max_length=length)
            if len(example["input_ids"]) < 1 + is_causal(model):
                raise ValueError("its text has no token to predict")
            if not is_causal(model):
                example["labels"] = classes[row.get("label")]
        except (ValueError, KeyError, TypeError) as error:
            labels = "" if is_causal(model) else ' and a "label", a class of the model'
            raise RankriseError(
                f'line {number} of {str(path)!r} must be a JSON object with a "text"{labels}: {error!r}.'
            ) from error
        yield {name: torch.tensor(value) for name, value in example.items()}


def _pictures(path: Path, model: Any, checkpoint: str | Path) -> Iterator[Example]:
    """The images in one folder per class, one of each class in turn."""
    image = require("PIL.Image", extra="train", purpose="An image folder")
    folders, classes = sorted(each for each in path.iterdir() if each.is_dir()), _classes(model)
    named = bool(folders) and all(folder.name in classes for folder in folders)
    if not named and len(folders) != model.config.num_labels:
        raise RankriseError(
            f"{str(path)!r} has {len(folders)} folders, and the model {model.config.num_labels} classes: "
            "make one per class."
        )
    labels = [classes[folder.name] if named else place for place, folder in enumerate(folders)]
    prepare = _prepared(checkpoint, "AutoImageProcessor")
    files = [[f for f in sorted(folder.iterdir()) if f.suffix.lower() in PICTURES] for folder in folders]
    for of_each_class in zip_longest(*files):
        for label, file in zip(labels, of_each_class, strict=True):
            if file is None:
                continue
            try:
                with image.open(file) as opened:
                    pixels = prepare(opened.convert("RGB"), return_tensors="pt")["pixel_values"][0]
            except Exception as error:  # decoders fail in many ways
                raise RankriseError(f"{str(file)!r} cannot be read ({error}): remove it.") from error
            yield {"pixel_values": pixels, "labels": torch.tensor(label)}


def _classes(model: Any) -> dict[Any, int]:
    """The numbers of classes by number and by the model's own names."""
    numbers = range(getattr(model.config, "num_labels", 0))
    named = getattr(model.config, "label2id", None) or {}
    return {number: number for number in numbers} | {
        str(name): number for name, number in named.items() if number in numbers
    }


def _prepared(checkpoint: str | Path, kind: str) -> Any:
    """The checkpoint's tokenizer or image processor; a folder is read without asking the Hub."""
    transformers = require("transformers", extra="transformers", purpose="A tokenizer or image processor")
    try:
        with offline() if Path(checkpoint).is_dir() else nullcontext():
            found = getattr(transformers, kind).from_pretrained(checkpoint, trust_remote_code=False)
        if kind == "AutoTokenizer" and not found("a text")["input_ids"]:  # made although files are missing
            raise ValueError("it is empty")
    except Exception as error:
        what = "tokenizer" if kind == "AutoTokenizer" else "image processor"
        raise RankriseError(
            f"{str(checkpoint)!r} has no {what} that can be read ({type(error).__name__}): save it beside "
            "the model."
        ) from error
    return found


def _length(model: Any) -> int:
    places = getattr(model.config, "max_position_embeddings", None)
    return min(LONGEST, places) if isinstance(places, int) and places > 1 else LONGEST


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RankriseError(f"{str(path)!r} is not text ({error.reason}): save it as UTF-8.") from error
