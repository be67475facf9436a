"""A run before its first step: what is trained, how a step is computed, and where it is recorded."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._optimiser import optimiser_of
from rankrise.train._rate import decayed
from rankrise.train._reached import Reached
from rankrise.train._step import Step, compiled, eager_score, eager_step, graphed
from rankrise.train._task import Task, task_of
from rankrise.train._times import Times

NEARLY_ALL = 0.99
"""What weight decay may leave of the initial weights without a word."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Everything that a run trains with, in one of its processes."""

    settings: TrainSettings
    place: Path
    """The run's folder, resolved: a link on the way may point to another run by the time of a checkpoint."""
    accelerator: Any
    task: Task
    times: Times
    model: nn.Module
    optimiser: Any
    tracker: watch.RankTracker
    step_of: Step
    score_of: Step

    @property
    def share(self) -> slice:
        """Which examples of a batch are this process's."""
        return self.share_of(self.settings.batch_size // self.accelerator.num_processes)

    def share_of(self, size: int) -> slice:
        """The same where every process takes `size` examples."""
        return slice(self.accelerator.process_index * size, (self.accelerator.process_index + 1) * size)

    def reached(self, step: int, loss: float, metrics: dict[str, float]) -> Reached:
        """Where the run is at a step."""
        units = step_units(self.settings, self.task)
        evaluated = self.times.evaluates(step)
        return Reached(step, self.times.total, units, self.times.epoch(step), loss, metrics, evaluated)


def prepared(settings: TrainSettings, folder: Path, note: str, meter: Meter) -> Prepared:
    """Make the data, the network and its optimiser, begin or open the record, and build the step."""
    accelerator = require("accelerate", extra="train", purpose="training").Accelerator(mixed_precision="no")
    _refuse_processes(settings, accelerator.num_processes)
    torch.manual_seed(settings.seed + accelerator.process_index)
    with accelerator.main_process_first():  # it decodes or tokenises, the others find that done
        task = task_of(settings, accelerator.device, meter)
    times = Times(settings, task.examples)
    model = task.model()
    optimiser = optimiser_of(settings, model, accelerator.device)
    model, optimiser = accelerator.prepare(model.to(accelerator.device), optimiser)
    model.train()
    place = Path(os.path.realpath(folder))
    tracker = watch.RankTracker(
        model,
        folder,
        schedule=times.schedule(),
        matrices=settings.matrices,
        top=settings.leading_values,
        note=note,
        extra=_described(settings, task, times, accelerator.num_processes),
    )
    step_of, score_of = _computed(settings, accelerator, task, model, optimiser, tracker)
    return Prepared(settings, place, accelerator, task, times, model, optimiser, tracker, step_of, score_of)


def step_units(settings: TrainSettings, task: Task) -> int:
    """Images or tokens in a step."""
    return settings.batch_size * task.units_per_example


def _refuse_processes(settings: TrainSettings, processes: int) -> None:
    """Refuse as many processes as cannot train together."""
    if settings.batch_size % processes:
        raise RankriseError(
            f"batch_size is {settings.batch_size}, which {processes} processes cannot share equally: pass a "
            "multiple."
        )
    if settings.optimiser == "random-walk" and processes > 1:
        raise RankriseError(
            f"optimiser is random-walk, and each of {processes} processes would walk its own way: train on "
            "one."
        )


def _described(settings: TrainSettings, task: Task, times: Times, processes: int) -> dict[str, Any]:
    """What the record says of the run beside its heads."""
    return {
        "recipe": settings.to_dict(),
        "task": task.name,
        "data": settings.data_name or settings.data,
        "epoch_steps": times.epoch_steps,
        "total_steps": times.total,
        "step_units": step_units(settings, task),
        "processes": processes,
        "notes": _of_decay(decayed(settings, times.total, times.warm_up)),
    }


def _of_decay(kept: float) -> list[str]:
    """What has to be known of ranks where weight decay leaves so much of the initial weights."""
    if kept > NEARLY_ALL:
        return []
    return [
        f"weight decay leaves {kept:.2g} of the initial weights by the end, and what it takes from their "
        "products is part of the change, with a high rank"
    ]


def _computed(
    settings: TrainSettings,
    accelerator: Any,
    task: Task,
    model: nn.Module,
    optimiser: Any,
    tracker: watch.RankTracker,
) -> tuple[Step, Step]:
    """The step of training and the score of validation, compiled and replayed where the settings ask."""
    alone = accelerator.num_processes == 1
    loss_of, score_of = compiled(settings, task, plain=alone)
    step_of = eager_step(settings, accelerator, model, optimiser, loss_of)
    score_of = eager_score(settings, accelerator, model, score_of)
    on_gpu = accelerator.device.type == "cuda"
    if settings.cuda_graph and settings.compile != "none" and alone and on_gpu:
        step_of, score_of = graphed(step_of, score_of, before_capture=tracker.flush)
    return step_of, score_of
