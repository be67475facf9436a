"""Data to measure on: a user's own text or images, a recipe, or that of a run of 'rankrise train'."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.recipes.files import names as recipe_names
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.recipes.use_settings import Measuring
from rankrise.record.folder import has_run
from rankrise.use._moments import IGNORED, Moments, labelled, moments, predictions, sampled
from rankrise.use._weights import Source, fingerprint, is_causal, load_model
from rankrise.watch._checkpoint import offline

PICTURES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
LONGEST = 512  # the most tokens in an example

Example = dict[str, Tensor]  # the inputs of one example, without a batch dimension, and its `labels`
Evaluate = Callable[[Any], dict[str, float]]
Judged = Literal["training", "validation"]  # the part of a recipe's data whose loss is measured


@dataclass(frozen=True, eq=False)
class Data:
    """Batches to measure moments on, and the loss of a model on others."""

    batches: Callable[[], Any]
    examples: int
    evaluate: Evaluate
    measured_on: str  # what a result is measured on, in words
    final: Evaluate | None = None  # measures what a search by `evaluate` found, on examples of its own
    precision: Callable[[Any], AbstractContextManager[Any]] = nullcontext  # in which a model is trained


def open_models(
    models: Sequence[str], measuring: Measuring, judged: Judged = "validation", searching: bool = False
) -> tuple[Source, Source, Data | None]:
    """BASE and TUNED, or one run of 'rankrise train' and its initial weights; and the data to measure on."""
    if len(models) == 2:
        base, tuned = models
        if measuring.data is None:
            return base, tuned, None
        model = load_model(tuned)
        return base, model, read_data(model, tuned, measuring, judged, searching)
    from rankrise.train._begun import initial_model, last_checkpoint, settings_of

    run = models[0]
    if len(models) > 2 or not has_run(run):
        raise RankriseError(f"{' '.join(models)!r} is not a run: pass BASE and TUNED, or one run's folder.")
    settings = settings_of(run)
    if measuring.data is not None:
        raise RankriseError("A run brings its own data: leave --data out.")
    model = load_model(last_checkpoint(run))
    began = initial_model(run).to(next(model.parameters()).device)
    return began, model, _of_recipe(settings, model, measuring, judged, searching)


def read_data(
    model: Any,
    checkpoint: str | Path,
    measuring: Measuring,
    judged: Judged = "validation",
    searching: bool = False,
) -> Data:
    """Open a recipe or a user's own data, prepared by the checkpoint's tokenizer or image processor."""
    path, kind = str(measuring.data), type(model).__name__
    if not is_causal(model) and "Classification" not in kind:
        raise RankriseError(f"The loss of {kind} on --data is not known: pass one of your own from Python.")
    if path in recipe_names() or Path(path).suffix in (".yaml", ".yml"):
        return _of_recipe(read_recipe(path), model, measuring, judged, searching)
    held_out, size = measuring.held_out, measuring.batch_size

    def read(file: str, parts: int) -> list[list[Example]]:
        found = read_examples(
            Path(file), model, checkpoint, parts * measuring.examples, measuring.seed, parts
        )
        return [found[place::parts] for place in range(parts)]

    # for moments, for a search if there is one, and for the result
    parts = read(path, 2 + searching - bool(held_out)) + (read(held_out, 1) if held_out else [])

    @torch.no_grad()
    def evaluate(model: Any, examples: Sequence[Example] = parts[-1]) -> dict[str, float]:
        total, right, count = 0.0, 0, 0
        for batch in batched(examples, size, model):
            logits, labels = predictions(model, batch)
            total += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
            right += int((logits.argmax(-1) == labels).sum())
            count += len(labels)
        if is_causal(model):
            return {"loss": total / count, "perplexity": float(np.exp(total / count))}
        return {"loss": total / count, "accuracy": right / count}

    on = f"{len(parts[-1])} held-out examples of {held_out or path} (seed {measuring.seed})"
    search, final = (partial(evaluate, examples=parts[-2]), evaluate) if searching else (evaluate, None)
    return Data(lambda: batched(parts[0], size, model), len(parts[0]), search, on, final)


def _of_recipe(
    settings: TrainSettings, model: nn.Module, measuring: Measuring, judged: Judged, searching: bool
) -> Data:
    from rankrise.train._task import as_trained, evaluation, task_of, training_evaluation, training_inputs

    if settings.subject == "regression":
        raise RankriseError("These are regression problems: pass a run or recipe about images or text.")
    if measuring.held_out is not None:
        raise RankriseError("Runs and recipes have their own validation data: leave --held_out out.")
    folder = measuring.data_folder or settings.data_folder
    settings = replace(settings, also_validate=(), data_folder=folder)
    task = task_of(settings, next(model.parameters()).device)
    count = min(measuring.examples, task.examples)
    evaluate, on = evaluation(task, settings), "the whole validation set" + ", as the search" * searching
    if judged == "training":
        evaluate, number = training_evaluation(task, settings)
        on = f"{number} training examples"
    batches = partial(training_inputs, task, settings, count)
    return Data(batches, count, evaluate, on, precision=partial(as_trained, settings))


def moments_of(
    model: Any,
    data: Data | None,
    measuring: Measuring,
    progress: Callable[[int], None] = lambda examples: None,
) -> Moments | None:
    """Read the moments from their file if it exists; else measure them, if there is data, and write it."""
    file = measuring.moments
    if file is not None and file.exists():
        found = Moments.load(file)
        if model is not None and found.about["model"] != fingerprint(model):
            raise RankriseError(f"{file} has moments of other weights: measure these into another file.")
        return found
    if data is None:
        if file is not None:
            raise RankriseError(f"{file} does not exist, and there is no data to measure: pass --data.")
        return None
    generator = torch.Generator(next(model.parameters()).device).manual_seed(measuring.seed)
    loss_of = partial(sampled, generator=generator) if measuring.labels == "sampled" else labelled

    def loss(model: Any, batch: Any) -> Tensor:
        with data.precision(model):
            return loss_of(model, batch)

    about = {"data": measuring.data or "the run's own", "labels": measuring.labels, "seed": measuring.seed}
    found = moments(model, data.batches(), loss, block=measuring.block, about=about, progress=progress)
    if file is not None:
        found.save(file)
    return found


def read_examples(
    path: Path, model: Any, checkpoint: str | Path, at_most: int, seed: int = 0, least: int = 2
) -> list[Example]:
    """Read examples from a .jsonl file, a running text or an image folder, in random order."""
    if not path.exists():
        raise RankriseError(f"There is no data at {str(path)!r}: 'rankrise recipes' lists the recipes.")
    is_text = path.is_file() and (is_causal(model) or path.suffix in (".jsonl", ".json"))
    if is_text == (model.main_input_name == "pixel_values") or (path.is_file() and not is_text):
        raise RankriseError(
            f"{type(model).__name__} cannot take {str(path)!r}: pass a folder of images per class, a .jsonl "
            "file with texts and labels to a classifier of texts, or any text to a language model."
        )
    prepare = _prepared(checkpoint, "AutoTokenizer" if is_text else "AutoImageProcessor")
    length = min(LONGEST, getattr(model.config, "max_position_embeddings", None) or LONGEST)
    order = Random(seed)
    if not is_text:
        examples = _pictures(path, model, prepare, order)
    elif path.suffix in (".jsonl", ".json"):
        examples = _lines(path, model, prepare, length, order)
    else:
        examples = _blocks(path, prepare, length, at_most)
    found = list(islice(examples, at_most))
    order.shuffle(found)  # images come from one class after the other
    if len(found) < least:
        raise RankriseError(f"{str(path)!r} holds {len(found)} examples: pass at least {least}.")
    return found


def batched(examples: Sequence[Example], size: int, model: Any) -> Iterator[Example]:
    """Batches on the model's device; texts are padded by its own token, which classifiers look for."""
    device = next(model.parameters()).device
    padding = model.config.pad_token_id if "input_ids" in examples[0] else None
    known = padding is not None and 0 <= padding < model.get_input_embeddings().num_embeddings
    filling: dict[str, Any] = {"labels": IGNORED, "input_ids": padding if known else 0}

    def together(name: str, rows: list[Tensor]) -> Tensor:
        if rows[0].ndim != 1:
            return torch.stack(rows).to(device)
        return nn.utils.rnn.pad_sequence(rows, True, filling.get(name, 0)).to(device)

    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        yield {name: together(name, [each[name] for each in part]) for name in part[0]}


def _blocks(path: Path, tokenizer: Any, length: int, at_most: int) -> Iterator[Example]:
    """The beginning of a text, cut into blocks of tokens."""
    text = path.read_text("utf-8-sig")[: at_most * length * 16]  # more characters than tokens ever take
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    for block in filter(lambda block: len(block) > 1, tokens.split(length)):
        yield {"input_ids": block, "attention_mask": torch.ones_like(block)}


def _lines(path: Path, model: Any, tokenizer: Any, length: int, order: Random) -> Iterator[Example]:
    """The lines of a .jsonl file, each with a "text", and with a "label" for a classifier."""
    classes = _classes(model)
    numbered = enumerate(path.read_text("utf-8-sig").split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    for number, line in order.sample(lines, len(lines)):
        try:
            row = json.loads(line)
            example = tokenizer(row["text"], truncation=True, max_length=length)
            if len(example["input_ids"]) < 1 + is_causal(model):
                raise ValueError("its text has no token to predict")
            if not is_causal(model):
                example["labels"] = classes[row.get("label")]
        except (ValueError, KeyError, TypeError) as error:
            raise RankriseError(
                f'line {number} of {str(path)!r} must be a JSON object with a "text" and, for a classifier, '
                f'a "label" that it knows: {error!r}.'
            ) from error
        yield {name: torch.tensor(value) for name, value in example.items()}


def _pictures(path: Path, model: Any, prepare: Any, order: Random) -> Iterator[Example]:
    """The images in one folder per class, one of each class in turn."""
    image = require("PIL.Image", extra="train", purpose="An image folder")
    folders, classes = sorted(each for each in path.iterdir() if each.is_dir()), _classes(model)
    named, count = all(folder.name in classes for folder in folders), model.config.num_labels
    if not named and len(folders) != count:
        raise RankriseError(
            f"{str(path)!r} has {len(folders)} folders: make one for each of {count} classes."
        )
    labels = [classes[folder.name] if named else place for place, folder in enumerate(folders)]
    files = [[f for f in sorted(folder.iterdir()) if f.suffix.lower() in PICTURES] for folder in folders]
    for each in files:
        order.shuffle(each)
    for of_each_class in zip_longest(*files):
        for label, file in zip(labels, of_each_class, strict=True):
            if file is not None:
                with image.open(file) as opened:
                    pixels = prepare(opened.convert("RGB"), return_tensors="pt")["pixel_values"][0]
                yield {"pixel_values": pixels, "labels": torch.tensor(label)}


def _classes(model: Any) -> dict[Any, int]:
    """The numbers of classes by number and by the model's own names."""
    numbers, named = range(model.config.num_labels), model.config.label2id or {}
    by_name = {str(name): number for name, number in named.items() if number in numbers}
    return {number: number for number in numbers} | by_name


def _prepared(checkpoint: str | Path, kind: Literal["AutoTokenizer", "AutoImageProcessor"]) -> Any:
    """The checkpoint's tokenizer or image processor; a folder is read without asking the Hub."""
    transformers = require("transformers", extra="transformers", purpose="A tokenizer or image processor")
    try:
        with offline() if Path(checkpoint).is_dir() else nullcontext():
            found = getattr(transformers, kind).from_pretrained(checkpoint, trust_remote_code=False)
        if kind == "AutoTokenizer" and not found("a text")["input_ids"]:  # made although files are missing
            raise ValueError("it is empty")
    except (OSError, ValueError) as error:
        raise RankriseError(
            f"{str(checkpoint)!r} has no {kind[4:]} that can be read: save it there."
        ) from error
    return found
