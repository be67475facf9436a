"""Data to measure on: a user's own text or images, a recipe, or that of a run of 'rankrise train'."""

import json
import warnings
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
from rankrise.record.run_file import has_run
from rankrise.use._gathered import IGNORED, labelled, moments, sampled
from rankrise.use._moments import Moments
from rankrise.use._weights import Source, is_causal, is_classifier, load_model
from rankrise.watch._config import offline

Example = dict[str, Tensor]
"""The inputs of one example, without a batch dimension, and its `labels`."""

Judged = Literal["training", "validation"]
"""The part of a run's or recipe's data whose loss is measured."""

__all__ = ["Data", "Measuring", "moments_of", "open_models", "read_data"]

PICTURES = (".jpeg", ".jpg", ".png", ".webp", ".bmp")
"""The suffixes of files that are read as pictures."""
LONGEST = 512
"""The most tokens in an example."""


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
    _refuse_regression(settings, run)
    model = load_model(last_checkpoint(run))
    began = initial_model(run).to(next(model.parameters()).device)
    return began, model, _data_of(settings, model, measuring, judged)


def read_data(
    model: Any, checkpoint: str | Path, measuring: Measuring, judged: Judged = "validation"
) -> Data:
    """Open a recipe or a user's own data, prepared by the checkpoint's tokenizer or image processor."""
    if not is_causal(model) and not is_classifier(model):
        raise RankriseError(
            f"{type(model).__name__} predicts neither each next token nor one class, so its loss on --data "
            "is not known: leave it out, or call rankrise.use from Python with a loss of your own."
        )
    assert measuring.data is not None
    if measuring.data in recipe_names() or Path(measuring.data).suffix in (".yaml", ".yml"):
        settings = read_recipe(measuring.data)
        _refuse_regression(settings, f"the recipe {measuring.data}")
        found = _data_of(settings, model, measuring, judged)
        _try(model, next(iter(found.batches())), measuring.data, found.precision)
        return found
    size = measuring.batch_size
    examples = read_examples(measuring.data, model, checkpoint, 2 * measuring.examples)
    _try(model, next(batched(examples, size, model)), measuring.data)
    half = min(measuring.examples, len(examples) // 2)
    first, held_out = examples[:half], examples[half:]

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
    if _is_running_text(Path(measuring.data)):
        on += f" (blocks of up to {len(examples[0]['input_ids'])} tokens of running text)"
    return Data(lambda: batched(first, size, model), half, evaluate, on)


def moments_of(
    model: Any, data: Data | None, measuring: Measuring, progress: Callable[[int], None] | None = None
) -> Moments | None:
    """Read the moments from their file if it exists; else measure them, if there is data, and write it."""
    file = measuring.moments
    if file is not None and file.exists():
        found = Moments.load(file)
        if model is not None:
            found.refuse_other_model(model)
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


def _data_of(settings: TrainSettings, model: nn.Module, measuring: Measuring, judged: Judged) -> Data:
    """The data of a recipe."""
    from rankrise.train._task import as_trained, evaluation, task_of, training_evaluation, training_inputs

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


def _refuse_regression(settings: TrainSettings, said: str) -> None:
    if settings.subject == "regression":
        raise RankriseError(f"{said} is about regression problems: pass one about images or text.")


def _try(model: Any, batch: Example, data: str, precision: Any = nullcontext) -> None:
    """Refuse data that the model cannot take."""
    try:
        with torch.no_grad(), precision(model):
            labelled(model, batch)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, RankriseError):
            raise
        advice = "pass data that it was made for, prepared by its own tokenizer or image processor"
        if "input_ids" in batch and model.config.pad_token_id is None:
            advice += ", and give its config a pad_token_id or pass --batch_size 1"
        raise RankriseError(
            f"{type(model).__name__} cannot take the data of {data} ({first_line(error).rstrip('.')}): "
            f"{advice}."
        ) from error


def read_examples(path: str | Path, model: Any, checkpoint: str | Path, at_most: int) -> list[Example]:
    """Read examples from a .jsonl file, a running text or an image folder."""
    path = Path(path)
    if not path.exists():
        raise RankriseError(
            f"There is no data at {str(path)!r}: pass a text file, a .jsonl file, an image folder, or a "
            "recipe ('rankrise recipes' lists them)."
        )
    reads_images = model.main_input_name == "pixel_values"
    if path.is_dir() != reads_images:
        wanted = "a folder with one folder of images per class" if reads_images else "a text or .jsonl file"
        raise RankriseError(f"{type(model).__name__} needs {wanted}: pass one in place of {str(path)!r}.")
    if reads_images:
        found = list(islice(_pictures(path, model, checkpoint), at_most))
    else:
        read = _blocks if _is_running_text(path) else _lines
        found = read(path, model, checkpoint, at_most)
    if len(found) < 2:
        raise RankriseError(f"{str(path)!r} holds {len(found)} examples: pass at least 2.")
    return found


def batched(examples: Sequence[Example], size: int, model: Any) -> Iterator[Example]:
    """Batches on the model's device, shorter texts masked and padded.

    The padding is the model's own token, by which a left-to-right classifier finds the end of a text.
    """
    device = next(model.parameters()).device
    filling = {"labels": IGNORED}
    if "input_ids" in examples[0]:
        padding = model.config.pad_token_id
        known = padding is not None and 0 <= padding < model.get_input_embeddings().num_embeddings
        filling["input_ids"] = padding if known else 0
    for start in range(0, len(examples), size):
        part = examples[start : start + size]
        longest = max(len(each.get("input_ids", ())) for each in part)
        batch = {}
        for name in part[0]:
            rows = [each[name] for each in part]
            if rows[0].ndim == 1:
                fill = filling.get(name, 0)
                rows = [nn.functional.pad(row, (0, longest - len(row)), value=fill) for row in rows]
            batch[name] = torch.stack(rows).to(device)
        yield batch


def _is_running_text(path: Path) -> bool:
    return path.is_file() and path.suffix not in (".jsonl", ".json")


def _blocks(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> list[Example]:
    """A text cut into blocks of tokens."""
    if not is_causal(model):
        raise RankriseError(
            f"{str(path)!r} is running text, and {type(model).__name__} needs labels: pass a .jsonl file "
            'whose lines have a "text" and a "label".'
        )
    length = _length(model)
    text = _text(path)[: at_most * length * 16]
    tokenizer = _tokenizer(checkpoint)
    tokens = torch.tensor(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    starts = range(0, min(len(tokens) - 1, at_most * length), length)
    blocks = [tokens[start : start + length] for start in starts]
    _check_tokens(blocks, tokenizer, model, path)
    return [{"input_ids": block, "attention_mask": torch.ones_like(block)} for block in blocks]


def _lines(path: Path, model: Any, checkpoint: str | Path, at_most: int) -> list[Example]:
    """The lines of a .jsonl file, each with a "text", and with a "label" for a classifier."""
    tokenizer, length, causal = _tokenizer(checkpoint), _length(model), is_causal(model)
    classes = _named_classes(model)
    found, cut = [], 0
    lines = [(n, line) for n, line in enumerate(_text(path).split("\n"), 1) if line.strip()]
    for number, line in lines[:at_most]:
        place = f"line {number} of {str(path)!r}"
        try:
            row = json.loads(line)
            text, label = row["text"], row.get("label")
            if not isinstance(text, str):
                raise TypeError
        except (ValueError, KeyError, TypeError) as error:
            raise RankriseError(f'{place} is not a JSON object with a "text": write one per line.') from error
        encoded = tokenizer(text, verbose=False)
        if len(encoded["input_ids"]) > length:
            cut += 1
            encoded = tokenizer(text, truncation=True, max_length=length)
        if len(encoded["input_ids"]) < 1 + causal:
            raise RankriseError(f"{place} has no token to predict, {text!r:.30}: write a longer text.")
        example = {name: torch.tensor(value) for name, value in encoded.items()}
        if not causal:
            index = classes.get(label) if isinstance(label, str) else label
            if type(index) is not int or not 0 <= index < model.config.num_labels:
                raise RankriseError(
                    f"{place} has the label {label!r}: write a class of the model, 0 to "
                    f"{model.config.num_labels - 1}."
                )
            example["labels"] = torch.tensor(index)
        found.append(example)
    if cut:
        warnings.warn(
            f"{cut} of {len(found)} texts in {str(path)!r} are longer than {length} tokens and were cut.",
            stacklevel=2,
        )
    _check_tokens([example["input_ids"] for example in found], tokenizer, model, path)
    return found


def _check_tokens(texts: Sequence[Tensor], tokenizer: Any, model: Any, path: Path) -> None:
    """Refuse the tokenizer of another model, and warn of a text that it does not know."""
    if not texts:
        return
    tokens, known = torch.cat(list(texts)), model.get_input_embeddings().num_embeddings
    if int(tokens.max()) >= known:
        raise RankriseError(
            f"The tokenizer gives token {int(tokens.max())}, and {type(model).__name__} has {known}: save "
            "the model's own tokenizer beside it."
        )
    unknown = tokenizer.get_vocab().get(tokenizer.unk_token)
    share = 0.0 if unknown is None else float((tokens == unknown).float().mean())
    if share > 0.5:
        warnings.warn(
            f"The tokenizer does not know {share:.0%} of the tokens of {str(path)!r}: is this text that the "
            "model is for?",
            stacklevel=2,
        )


def _pictures(path: Path, model: Any, checkpoint: str | Path) -> Iterator[Example]:
    """The images in one folder per class, one of each class in turn."""
    transformers = require("transformers", extra="transformers", purpose="An image processor")
    image = require("PIL.Image", extra="train", purpose="An image folder")
    folders = sorted(each for each in path.iterdir() if each.is_dir())
    known, count = _named_classes(model), model.config.num_labels
    if folders and all(folder.name in known for folder in folders):
        labels = [known[folder.name] for folder in folders]
    elif len(folders) == count:
        labels = list(range(count))
    else:
        raise RankriseError(
            f"{str(path)!r} has {len(folders)} folders, and the model {count} classes: make one per class."
        )
    prepare = _from_folder(transformers.AutoImageProcessor, checkpoint, "image processor")
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


def _named_classes(model: Any) -> dict[str, int]:
    """The numbers of classes by the model's own names."""
    named = getattr(model.config, "label2id", None) or {}
    return {str(name): number for name, number in named.items() if number in range(model.config.num_labels)}


def _tokenizer(checkpoint: str | Path) -> Any:
    transformers = require("transformers", extra="transformers", purpose="A tokenizer")
    tokenizer = _from_folder(transformers.AutoTokenizer, checkpoint, "tokenizer")
    if not tokenizer("a text")["input_ids"]:  # where files are missing, transformers makes an empty one
        raise RankriseError(f"{str(checkpoint)!r} has no tokenizer: save it beside the model.")
    return tokenizer


def _from_folder(kind: Any, checkpoint: str | Path, what: str) -> Any:
    """Load a tokenizer or image processor; a folder is read without asking the Hub."""
    try:
        with offline() if Path(checkpoint).is_dir() else nullcontext():
            return kind.from_pretrained(checkpoint, trust_remote_code=False)
    except Exception as error:
        raise RankriseError(
            f"{str(checkpoint)!r} has no {what} that can be read ({type(error).__name__}): save it beside "
            "the model."
        ) from error


def _length(model: Any) -> int:
    places = getattr(model.config, "max_position_embeddings", None)
    return min(LONGEST, places) if isinstance(places, int) and places > 1 else LONGEST


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RankriseError(f"{str(path)!r} is not text ({error.reason}): save it as UTF-8.") from error
