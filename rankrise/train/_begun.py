"""A run's network as it was when training began, and its data as transformers' models take them."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.recipes.train_settings import TrainSettings, settings_of_record
from rankrise.record.checkpoint import verified_step
from rankrise.record.names import CONFIG, INITIAL, WEIGHTS, latest_checkpoint, tensor_name
from rankrise.record.run_file import read_run
from rankrise.record.tensors import read_tensors
from rankrise.train._language_model import language_model, regression_model
from rankrise.train._task import Task
from rankrise.train._vision_model import vision_transformer

AT_ONCE = 16384
"""Most tokens or images in a batch of `training_inputs`: the logits of a text are large."""
JUDGED_BY, JUDGED_BY_UNITS = 5000, 200_000
"""Most training examples, and tokens of text, that a training loss is measured on."""

Evaluate = Callable[[nn.Module], dict[str, float]]


def settings_of(folder: str | Path) -> TrainSettings:
    """The settings that a run was made with."""
    recipe = read_run(folder, "tracked").get("extra", {}).get("recipe")
    if not recipe:
        raise RankriseError(
            f"{folder} is not a run of 'rankrise train': pass one, or the checkpoints from before and after "
            "its training (BASE TUNED)."
        )
    return TrainSettings().changed(settings_of_record(recipe), f"the run {folder}")


def last_checkpoint(folder: str | Path) -> Path:
    """The folder of a run's newest checkpoint, its weights verified."""
    found = latest_checkpoint(folder)
    if found is None:
        raise RankriseError(f"{folder} has no checkpoint: train with --checkpoint_every, or copy it there.")
    verified_step(found, [WEIGHTS])
    return found


def initial_model(folder: str | Path) -> nn.Module:
    """Draw the network that training began with again, and compare it with the recorded initial weights."""
    settings = settings_of(folder)
    config = read_json(last_checkpoint(folder) / CONFIG)
    if settings.subject == "regression":
        model = regression_model(settings)
    elif settings.subject == "text":
        model = language_model(settings, config["vocab_size"])
    else:
        classes = config.get("num_labels") or len(config["id2label"])
        model = vision_transformer(settings, config["num_channels"], classes)
    path = Path(folder) / INITIAL
    if path.is_file():
        kept, _ = read_tensors(path, "restore it")
        for layer in watch.heads(model):
            drawn, stored = layer.query.detach(), kept.get(tensor_name(layer.name, "query"))
            if stored is not None and not torch.equal(stored, drawn):
                raise RankriseError(
                    f"{folder} began with other weights than its recipe draws here ({layer.name} differs): "
                    "another version of torch draws others; use the one in run.json."
                )
    return model


def training_inputs(task: Task, settings: TrainSettings, examples: int) -> Iterator[dict[str, Tensor]]:
    """Training batches as transformers' models take them, at least `examples` in all."""
    size = min(settings.micro_batch_size or settings.batch_size, examples, task.examples)
    size = max(1, min(size, AT_ONCE // task.units_per_example))
    batches = task.batches(0, 0, size, slice(0, size))
    for batch in islice(batches, -(-examples // size)):
        yield task.inputs(*batch)


def evaluation(task: Task, settings: TrainSettings) -> Evaluate:
    """A function that measures a model by the loss on the validation set, with its other metrics."""
    size = settings.micro_batch_size or settings.batch_size

    def evaluate(model: nn.Module) -> dict[str, float]:
        with as_trained(settings, model):
            scores = [task.score(model, *batch) for batch in task.validation_batches(size, slice(0, size))]
        found = {name: float(value) for name, value in task.metrics(torch.stack(scores).sum(0)).items()}
        return {"loss": found.pop("validation_loss"), **found}

    return evaluate


def training_evaluation(task: Task, settings: TrainSettings) -> tuple[Evaluate, int]:
    """The same by the loss on training examples of the second epoch, and the number of these.

    A network that has memorised its training set may end above its initial validation loss.
    """
    count = max(1, min(task.examples, JUDGED_BY, JUDGED_BY_UNITS // task.units_per_example))
    size = min(settings.micro_batch_size or settings.batch_size, count)
    batches = list(islice(task.batches(1, 0, size, slice(0, size)), count // size))
    validation = evaluation(task, settings)

    def evaluate(model: nn.Module) -> dict[str, float]:
        with as_trained(settings, model):
            losses = [task.loss(model, *batch).detach().double() for batch in batches]
        scores = validation(model)
        return {"loss": float(torch.stack(losses).mean()), "validation_loss": scores.pop("loss"), **scores}

    return evaluate, len(batches) * size


def as_trained(settings: TrainSettings, model: nn.Module) -> torch.autocast:
    """A context in which a model computes in its training precision."""
    device = next(model.parameters()).device.type
    return torch.autocast(device, torch.bfloat16, enabled=settings.precision == "bf16" and device == "cuda")
