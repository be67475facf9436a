"""Data to measure on: a user's own text or images, a recipe, or that of a run of 'rankrise train'."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.optional import require
from rankrise.recipes.files import names as recipe_names
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.recipes.use_settings import Measuring
from rankrise.record.folder import has_run
from rankrise.use._gathered import IGNORED, labelled, moments, sampled
from rankrise.use._moments import Moments
from rankrise.use._weights import Source, fingerprint, is_causal, load_model
from rankrise.watch._pretrained import offline

Example = dict[str, Tensor]
"""The inputs of one example, without a batch dimension, and its `labels`."""

JSON = (".jsonl", ".json")
PICTURES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")

LONGEST = 512
"""The most tokens in an example."""

Judged = Literal["training", "validation"]
"""The part of a run's or recipe's data whose loss is measured."""

__all__ = ["Data", "Measuring", "moments_of", "open_models", "read_data"]


@dataclass(frozen=True, eq=False)
class Data:
    """Batches to measure moments on, and the loss of a model on others."""

    batches: Callable[[], Any]
    examples: int
    evaluate: Callable[[Any], dict[str, float]]
    measured_on: str
    """What the loss is measured on, in words."""
    precision: Callable[[Any], AbstractContextManager[Any]] = nullcontext
    """The context in which a model computes the loss."""


def open_models(
    models: Sequence[str], measuring: Measuring, judged: Judged = "validation"
) -> tuple[Source, Source, Data | None]:
    """BASE and TUNED, or one run of 'rankrise train' and its initial weights; and the data to measure on."""
    if len(models) > 2:
        raise RankriseError(f"{len(models)} models are given: pass BASE and TUNED, or one run.")
    if len(models) == 2:
        base, tuned = models
        if measuring.data is None:
            return base, tuned, None
        model = load_model(tuned)
        return base, model, read_data(model, tuned, measuring, judged)
    from rankrise.train._begun import initial_model, last_checkpoint, settings_of

    (run,) = models
    if not has_run(run):
        raise RankriseError(f"{run!r} is not a run: pass BASE and TUNED, or the folder of a run.")
    settings = settings_of(run)
    if measuring.data is not None:
        raise RankriseError("A run brings its own data: leave --data out.")
    model = load_model(last_checkpoint(run))
    began = initial_model(run).to(next(model.parameters()).device)
    return began, model, _of_recipe(settings, model, measuring, judged)


def read_data(
    model: Any, checkpoint: str | Path, measuring: Measuring, judged: Judged = "validation"
) -> Data:
    """Open a recipe or a user's own data, prepared by the checkpoint's tokenizer or image processor."""
    path, size = str(measuring.data), measuring.batch_size
    classifies = re.search("For(Sequence|Image|Video|Audio)Classification", type(model).__name__)
    if not is_causal(model) and not classifies:
        raise RankriseError(
            f"{type(model).__name__} predicts neither each next token nor one class, so its loss on --data "
            "is not known: leave it out, or call rankrise.use from Python with a loss of your own."
        )
    if path in recipe_names() or Path(path).suffix in (".yaml", ".yml"):
        found = _of_recipe(read_recipe(path), model, measuring, judged)
    else:
        examples = read_examples(path, model, checkpoint, 2 * measuring.examples)
        half = min(measuring.examples, len(examples) // 2)
        held_out = examples[half:]

        def evaluate(model: Any) -> dict[str, float]:
            total, count = 0.0, 0
            with torch.no_grad():
                for batch in batched(held_out, size, model):
                    predicted = len(next(iter(batch.values())))
                    if is_causal(model):
                        predicted = int(batch["attention_mask"][:, 1:].sum())
                    total += float(labelled(model, batch)) * predicted
                    count += predicted
            return {"loss": total / count}

        on = f"{len(held_out)} held-out example{'s' if len(held_out) > 1 else ''}"
        if Path(path).is_file() and Path(path).suffix not in JSON:
            on += f" (blocks of up to {len(examples[0]['input_ids'])} tokens of running text)"
        found = Data(lambda: batched(examples[:half], size, model), half, evaluate, on)
    try:
        with torch.no_grad(), found.precision(model):
            labelled(model, next(iter(found.batches())))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise RankriseError(
            f"{type(model).__name__} cannot take the data of {path} ({first_line(error).rstrip('.')}): pass "
            "data that it was made for, prepared by its own tokenizer or image processor, and --batch_size 1 "
            "if its config has no pad_token_id."
        ) from error
    return found


def _of_recipe(settings: TrainSettings, model: nn.Module, measuring: Measuring, judged: Judged) -> Data:
    from rankrise.train._task import as_trained, evaluation, task_of, training_evaluation, training_inputs

    if settings.subject == "regression":
        raise RankriseError("These are regression problems: pass a run or recipe about images or text.")
    settings = replace(settings, also_validate=())
    if measuring.data_folder is not None:
        settings = settings.changed({"data_folder": measuring.data_folder}, "the command line")
    task = task_of(settings, next(model.parameters()).device)
    count = min(measuring.examples, task.examples)
    if judged == "training":
        evaluate, judged_by = training_evaluation(task, settings)
        on = f"{judged_by} training examples"
    else:
        evaluate, on = evaluation(task, settings), "the whole validation set"
    return Data(
        lambda: training_inputs(task, settings, count), count, evaluate, on, partial(as_trained, settings)
    )


def moments_of(
    model: Any, data: Data | None, measuring: Measuring, progress: Callable[[int], None] | None = None
) -> Moments | None:
    """Read the moments from their file if it exists; else measure them, if there is data, and write it."""
    file = measuring.moments
    if file is not None and file.exists():
        found = Moments.load(file)
        if model is not None and found.about.get("model") not in (None, fingerprint(model)):
            raise RankriseError(
                f"The moments in {file} were measured on a model with other weights: measure them on this "
                "one, into another file."
            )
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


def read_examples(path: str | Path, model: Any, checkpoint: str | Path, at_most: int) -> list[Example]:
    """Read examples from a .jsonl file, a running text or an image folder."""
    path, kind = Path(path), type(model).__name__
    reads_images = model.main_input_name == "pixel_values"
    if not path.exists():
        raise RankriseError(f"There is no data at {str(path)!r}: 'rankrise recipes' lists the recipes.")
    if path.is_dir() != reads_images:
        wanted = "a folder with one folder of images per class" if reads_images else "a text or .jsonl file"
        raise RankriseError(f"{kind} needs {wanted}: pass one in place of {str(path)!r}.")
    if reads_images:
        examples = _pictures(path, model, checkpoint)
    elif path.suffix in JSON:
        examples = _lines(path, model, checkpoint)
    elif is_causal(model):
        examples = _blocks(path, model, checkpoint, at_most)
    else:
        raise RankriseError(
            f"{str(path)!r} is running text, and {kind} needs labels: pass a .jsonl file whose lines have a "
            '"text" and a "label".'
        )
    found = list(islice(examples, at_most))
    if len(found) < 2:
        raise RankriseError(f"{str(path)!r} holds {len(found)} examples: pass at least 2.")
    return found


def batched(examples: Sequence[Example], size: int, model: Any) -> Iterator[Example]:
    """Batches on the model's device; texts are padded by its own token, which classifiers look for."""
    device = next(model.parameters()).device
    padding = model.config.pad_token_id if "input_ids" in examples[0] else None
    known = padding is not None and 0 <= padding < model.get_input_embeddings().num_embeddings
    filling: dict[str, Any] = {"labels": IGNORED, "input_ids": padding if known else 0}
    for start in range(0, len(examples), size):
        part, batch = examples[start : start + size], {}
        for name in part[0]:
            rows = [each[name] for each in part]
            if rows[0].ndim == 1:
                batch[name] = nn.utils.rnn.pad_sequence(rows, True, filling.get(name, 0)).to(device)
            else:
                batch[name] = torch.stack(rows).to(device)
        yield batch


def _blocks(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> Iterator[Example]:
    """The beginning of a text, cut into blocks of tokens."""
    tokenizer, length = _prepared(checkpoint, "AutoTokenizer"), _length(model)
    text = _text(path)[: at_most * length * 16]  # more characters than tokens ever take
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    for block in tokens.split(length):
        if len(block) > 1:
            yield {"input_ids": block, "attention_mask": torch.ones_like(block)}


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
    count, named = getattr(model.config, "num_labels", 0), getattr(model.config, "label2id", None) or {}
    by_name = {str(name): number for name, number in named.items() if number in range(count)}
    return {number: number for number in range(count)} | by_name


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
            f"{str(checkpoint)!r} has no {what} that can be read ({type(error).__name__}): save it there."
        ) from error
    return found


def _length(model: Any) -> int:
    places = getattr(model.config, "max_position_embeddings", None)
    return min(LONGEST, places) if isinstance(places, int) and places > 1 else LONGEST


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RankriseError(f"{path} is not text ({error.reason}): save it as UTF-8.") from error
