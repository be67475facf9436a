"""The task that settings ask for, and measurements on its data."""

from collections.abc import Callable, Iterator
from itertools import islice

import torch
from torch import Tensor, nn

from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import Task
from rankrise.train._images import image_classification
from rankrise.train._regression import InContextRegression
from rankrise.train._text import next_token_prediction

AT_ONCE = 16384  # most tokens or images in a batch: the logits of a text are large
JUDGED_BY, JUDGED_BY_UNITS = 5000, 200_000  # most examples and tokens that a training loss is measured on

Evaluate = Callable[[nn.Module], dict[str, float]]


def task_of(settings: TrainSettings, device: torch.device, meter: Meter = unseen) -> Task:
    """The task of the settings, on data that is read and checked; `meter` shows how far that is."""
    if settings.subject == "images":
        return image_classification(settings, device, meter)
    if settings.subject == "text":
        return next_token_prediction(settings, device, meter)
    return InContextRegression(settings, device)


def training_inputs(task: Task, settings: TrainSettings, examples: int) -> Iterator[dict[str, Tensor]]:
    """Training batches as transformers' models take them, at least `examples` in all."""
    size = min(settings.micro_batch_size or settings.batch_size, examples, task.examples)
    size = max(1, min(size, AT_ONCE // task.units_per_example))
    for batch in islice(task.batches(0, 0, size, slice(0, size)), -(-examples // size)):
        yield dict(zip(task.takes, task.read(*batch), strict=False))


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
    """Like `evaluation`, by the loss on training examples of the second epoch; and how many these are."""
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
