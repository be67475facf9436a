"""Train a network as its settings say, recorded step by step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._batches import Batch
from rankrise.train._begun import Reached, end_of, run_in
from rankrise.train._checkpoint import cut_series, keep_in_series, load_checkpoint, save_checkpoint
from rankrise.train._optimiser import optimiser_of
from rankrise.train._step import chosen_kernels, steps_of
from rankrise.train._task import task_of
from rankrise.train._times import Times, set_rate


class Interrupted(Exception):
    """A signal asked the run to stop; its checkpoint is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}")
        self.signal_number, self.step = signal_number, step


def train(
    settings: TrainSettings,
    folder: str | Path,
    progress: Callable[[Reached], None] | None = None,
    meter: Meter = unseen,
) -> Reached:
    """Train as `settings` say and record the run in `folder`, or resume the run in that folder.

    `meter` shows how far the data are decoded or tokenised, `progress` the training.
    """
    folder = Path(folder)
    found = run_in(folder, settings)
    if found is not None and found.get("finished"):
        return end_of(folder)
    training = _Training(settings, folder, meter)
    with training.tracker, _signals_noted() as signals, chosen_kernels(settings):
        training.check_record()
        reached = training.to_the_end(signals, progress)
    training.check_record()
    return reached


class _Training:
    """Everything that a run trains with, in one of its processes."""

    def __init__(self, settings: TrainSettings, folder: Path, meter: Meter) -> None:
        accelerate = require("accelerate", extra="train", purpose="training")
        self.settings, self.folder = settings, folder
        self.accelerator = accelerator = accelerate.Accelerator(mixed_precision="no")
        if settings.batch_size % accelerator.num_processes:
            raise RankriseError(f"batch_size has to be a multiple of {accelerator.num_processes} processes.")
        if settings.optimiser == "random-walk" and accelerator.num_processes > 1:
            raise RankriseError("optimiser random-walk cannot be shared by processes: train on one.")
        torch.manual_seed(settings.seed + accelerator.process_index)
        with accelerator.main_process_first():  # the others find the data decoded or tokenised
            self.task = task = task_of(settings, accelerator.device, meter)
        self.times = times = Times(settings, task.examples)
        self.step_units = settings.batch_size * task.units_per_example
        model = task.model()
        optimiser = optimiser_of(settings, model, accelerator.device)
        model, self.optimiser = accelerator.prepare(model.to(accelerator.device), optimiser)
        self.model = model.train()
        self.losses: list[Tensor] = []  # one per step since the mean was logged
        left = times.decay()
        decayed = (
            f"weight decay leaves {left:.2g} of the initial weights by the end, and what it takes from "
            "their products is part of the change, with a high rank"
        )
        extra = {
            "recipe": settings.to_dict(),
            "data": settings.data_name or settings.data,
            "epoch_steps": times.epoch_steps,
            "total_steps": times.total,
            "step_units": self.step_units,
            "notes": [decayed] if left < 0.99 else [],
        }
        top, matrices = settings.leading_values, settings.matrices
        self.tracker = watch.RankTracker(
            model, folder, schedule=times.schedule, matrices=matrices, top=top, extra=extra
        )
        self.step_of, self.score_of = steps_of(
            settings, accelerator, task, model, self.optimiser, before_capture=self.tracker.flush
        )

    def to_the_end(self, signals: list[int], progress: Callable[[Reached], None] | None) -> Reached:
        """Train from the newest checkpoint to the last step, or until a signal."""
        times, tracker, accelerator = self.times, self.tracker, self.accelerator
        last, losses = load_checkpoint(self.folder, self.model, self.optimiser, accelerator)
        self.losses = list(losses.to(accelerator.device))
        if accelerator.is_main_process:
            cut_series(self.folder, last)
        if last == 0:
            tracker.step(0)
            self.keep(0)
        batches = self.batches(last)
        loss, metrics = float("nan"), dict[str, float]()

        def reached(step: int) -> Reached:
            epoch, evaluated = step / times.epoch_steps, step in times.evaluations
            return Reached(step, times.total, self.step_units, epoch, loss, metrics, evaluated)

        for step in range(last + 1, times.total + 1):
            rate = times.rate(step)
            set_rate(self.optimiser, rate)
            self.losses.append(self.step_of(next(batches)).clone())
            numbers: dict[str, Any] = {}
            if times.logs(step):
                mean = self.window(step).mean()
                self.losses, loss = [], float(mean)
                numbers = {"loss": mean, "learning_rate": rate, "epoch": step / times.epoch_steps}
            if step in times.evaluations:
                measured = self.validate()
                numbers |= measured
                metrics = {name: float(value) for name, value in measured.items()}
            if times.schedule.due(step):
                tracker.wait()  # no measurement is left out, however fast the steps are
            tracker.step(step, **numbers)
            self.keep(step)
            if numbers and progress is not None and accelerator.is_main_process:
                progress(reached(step))

            stop = self.agreed(signals, step)
            if step in times.saves or stop:
                window = self.window(step)
                tracker.flush()
                self.check_record()
                save_checkpoint(self.folder, step, self.model, self.optimiser, accelerator, window)
            if stop and step < times.total:
                raise Interrupted(stop, step)
        return reached(times.total)

    def window(self, step: int) -> Tensor:
        """The losses up to `step` that no mean was logged of, over all processes, all finite. float32 [n]"""
        if not self.losses:
            return torch.zeros(0)
        values: Tensor = self.accelerator.reduce(torch.stack(self.losses), "mean")
        for number, loss in enumerate(values.tolist(), start=step - len(values) + 1):
            if loss - loss != 0.0:
                raise RankriseError(
                    f"the loss is {loss} at step {number}: lower learning_rate, and train in a new folder."
                )
        return values

    def check_record(self) -> None:
        """Stop rather than train on without a record."""
        if self.tracker.lost:
            lost = self.tracker.lost.rstrip(".")
            raise RankriseError(f"{self.folder} could not be recorded ({lost}): mend that and resume it.")

    def batches(self, first: int) -> Iterator[Batch]:
        """This process's share of every batch from update number `first` on."""
        size, rank = self.settings.batch_size, self.accelerator.process_index
        part = size // self.accelerator.num_processes
        share = slice(rank * part, (rank + 1) * part)
        epoch, number = divmod(first, self.times.epoch_steps)
        while True:
            yield from self.task.batches(epoch, number, size, share)
            epoch, number = epoch + 1, 0

    def validate(self) -> dict[str, Tensor]:
        """The metrics over the validation set, in batches no larger than training takes at once."""
        processes, rank = self.accelerator.num_processes, self.accelerator.process_index
        whole = self.settings.batch_size // processes
        size = min(self.settings.micro_batch_size or whole, whole)
        batches = self.task.validation_batches(size * processes, slice(rank * size, (rank + 1) * size))
        scores = [self.score_of(batch).clone() for batch in batches]
        return self.task.metrics(self.accelerator.reduce(torch.stack(scores).sum(0), "sum"))

    def keep(self, step: int) -> None:
        """Add the weights to the series that is kept, if this step belongs to it."""
        if step in self.times.kept:
            keep_in_series(self.folder, step, self.model, self.accelerator)

    def agreed(self, signals: list[int], step: int) -> int:
        """The signal on which all processes stop after this step, or 0. Several agree only when they log."""
        if self.accelerator.num_processes == 1:
            return signals[0] if signals else 0
        if not self.times.logs(step):
            return 0
        noted = torch.tensor(float(signals[0] if signals else 0), device=self.accelerator.device)
        return int(self.accelerator.gather(noted[None]).max())


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Put SIGTERM and SIGINT on a list, so that no step is torn; only the main thread can do that."""
    noted: list[int] = []
    possible = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGTERM, signal.SIGINT) if possible else ()
    before = {number: signal.signal(number, lambda received, _: noted.append(received)) for number in numbers}
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
