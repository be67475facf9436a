"""Data to measure on: a user's own text or images, a recipe, or that of a run of 'rankrise train'."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.recipes.files import names as recipe_names
from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.recipes.use_settings import Measuring
from rankrise.record.run_file import has_run
from rankrise.use._examples import batched, is_classifier, is_running_text, read_examples
from rankrise.use._gathered import labelled, moments, sampled
from rankrise.use._moments import Moments
from rankrise.use._weights import Source, is_causal, load_model

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
    if not is_causal(model) and not is_classifier(model):
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
        if is_running_text(Path(path)):
            on += f" (blocks of up to {len(examples[0]['input_ids'])} tokens of running text)"
        found = Data(lambda: batched(examples[:half], size, model), half, evaluate, on)
    try:
        with torch.no_grad(), found.precision(model):
            labelled(model, next(iter(found.batches())))
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        raise RankriseError(
            f"{type(model).__name__} cannot take the data of {path} ({first_line(error).rstrip('.')}): pass "
            "data that it was made for, prepared by its own tokenizer or image processor; a model without a "
            "pad_token_id in its config takes --batch_size 1."
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
