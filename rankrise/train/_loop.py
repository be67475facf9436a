"""Train a network as its settings say, recorded step by step."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._checkpoint import cut_series, keep_in_series, load_checkpoint, save_checkpoint
from rankrise.train._learning_rate import decayed, rate_at, set_rate
from rankrise.train._losses import RecentLosses
from rankrise.train._optimiser import optimiser_of
from rankrise.train._order import Batch
from rankrise.train._run_folder import Reached, end_of, run_in
from rankrise.train._step import Step, chosen_kernels, steps_of
from rankrise.train._task import Task, task_of
from rankrise.train._times import Times

NEARLY_ALL = 0.99
"""If weight decay leaves less of the initial weights, the record notes it."""


class Interrupted(Exception):
    """A signal asked the run to stop; its checkpoint is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} at step {step}")
        self.signal_number, self.step = signal_number, step


def train(
    settings: TrainSettings,
    folder: str | Path,
    note: str = "",
    progress: Callable[[Reached], None] | None = None,
    meter: Meter = unseen,
) -> Reached:
    """Train as `settings` say and record the run in `folder`, or resume the run that is there.

    `progress` is called while it trains; `meter` shows how far the data are decoded or tokenised before.

    Call it under `accelerate launch` for several processes: they share each batch.
    """
    folder = Path(folder)
    found = run_in(folder, settings)
    if found is not None and found.get("finished"):
        return end_of(folder)
    run = _prepared(settings, folder, note, meter)
    with run.tracker, _signals_noted() as signals, chosen_kernels(settings):
        run.check_record()
        reached = _to_the_end(run, signals, progress)
    run.check_record()
    return reached


@dataclass(frozen=True, eq=False)
class _Run:
    """Everything that a run trains with, in one of its processes."""

    settings: TrainSettings
    folder: Path
    accelerator: Any
    task: Task
    times: Times
    model: nn.Module
    optimiser: Any
    tracker: watch.RankTracker
    step_of: Step
    score_of: Step

    def check_record(self) -> None:
        """Stop rather than train on without a record."""
        if self.tracker.lost:
            raise RankriseError(
                f"{self.folder} could not be recorded ({self.tracker.lost.rstrip('.')}): once that is "
                "mended, the same command goes on from the last checkpoint."
            )

    def share_of(self, size: int) -> slice:
        """This process's examples of a batch, if every process takes `size`."""
        return slice(self.accelerator.process_index * size, (self.accelerator.process_index + 1) * size)

    def batches(self, first: int) -> Iterator[Batch]:
        """This process's share of every batch from update number `first` on."""
        size = self.settings.batch_size
        share = self.share_of(size // self.accelerator.num_processes)
        epoch, number = divmod(first, self.times.epoch_steps)
        while True:
            yield from self.task.batches(epoch, number, size, share)
            epoch, number = epoch + 1, 0

    def validate(self) -> dict[str, Tensor]:
        """The metrics over the validation set, in batches no larger than training takes at once."""
        processes = self.accelerator.num_processes
        whole = self.settings.batch_size // processes
        size = min(self.settings.micro_batch_size or whole, whole)
        batches = self.task.validation_batches(size * processes, self.share_of(size))
        scores = [self.score_of(batch).clone() for batch in batches]
        return self.task.metrics(self.accelerator.reduce(torch.stack(scores).sum(0), "sum"))

    def keep(self, step: int) -> None:
        """Add the weights to the series that is kept, if this step belongs to it."""
        if step in self.times.kept:
            keep_in_series(self.folder, step, self.model, self.accelerator, self.settings.series_precision)

    def save(self, step: int, losses: RecentLosses) -> None:
        """Save a checkpoint, once the record has reached it."""
        window = losses.open_window(step)
        self.tracker.flush()
        self.check_record()
        save_checkpoint(self.folder, step, self.model, self.optimiser, self.accelerator, window)


def _prepared(settings: TrainSettings, folder: Path, note: str, meter: Meter) -> _Run:
    """Make the data, the network and its optimiser, open the record, and build the step."""
    accelerator = require("accelerate", extra="train", purpose="training").Accelerator(mixed_precision="no")
    processes = accelerator.num_processes
    if settings.batch_size % processes:
        raise RankriseError(
            f"batch_size is {settings.batch_size}, which {processes} processes cannot share equally: pass a "
            "multiple."
        )
    if settings.optimiser == "random-walk" and processes > 1:
        raise RankriseError("optimiser is random-walk, which several processes cannot share: train on one.")
    torch.manual_seed(settings.seed + accelerator.process_index)
    with accelerator.main_process_first():  # the others find the data decoded or tokenised
        task = task_of(settings, accelerator.device, meter)
    times = Times(settings, task.examples)
    model = task.model()
    optimiser = optimiser_of(settings, model, accelerator.device)
    model, optimiser = accelerator.prepare(model.to(accelerator.device), optimiser)
    model.train()

    kept = decayed(settings, times.total, times.warm_up)
    notes = [
        f"weight decay leaves {kept:.2g} of the initial weights by the end, and what it takes from their "
        "products is part of the change, with a high rank"
    ]
    extra = {
        "recipe": settings.to_dict(),
        "task": task.name,
        "data": settings.data_name or settings.data,
        "epoch_steps": times.epoch_steps,
        "total_steps": times.total,
        "step_units": settings.batch_size * task.units_per_example,
        "processes": processes,
        "notes": [] if kept > NEARLY_ALL else notes,
    }
    tracker = watch.RankTracker(
        model,
        folder,
        schedule=times.schedule(),
        matrices=settings.matrices,
        top=settings.leading_values,
        note=note,
        extra=extra,
    )
    steps = steps_of(settings, accelerator, task, model, optimiser, before_capture=tracker.flush)
    return _Run(settings, folder, accelerator, task, times, model, optimiser, tracker, *steps)


def _to_the_end(run: _Run, signals: list[int], progress: Callable[[Reached], None] | None) -> Reached:
    """Train from the newest checkpoint to the last step, or until a signal."""
    settings, times, tracker = run.settings, run.times, run.tracker
    schedule = times.schedule()
    final = settings.final_learning_rate / settings.learning_rate
    losses = RecentLosses(min(settings.log_every, times.total), run.accelerator)
    last, open_window = load_checkpoint(run.folder, run.model, run.optimiser, run.accelerator)
    losses.resume(open_window)
    cut_series(run.folder, last, run.accelerator)
    if last == 0:
        tracker.step(0)
        run.keep(0)
    batches = run.batches(first=last)
    metrics: dict[str, float] = {}

    def reached(step: int) -> Reached:
        units = settings.batch_size * run.task.units_per_example
        epoch, evaluated = times.epoch(step), step in times.evaluations
        return Reached(step, times.total, units, epoch, losses.known, metrics, evaluated)

    for step in range(last + 1, times.total + 1):
        rate = settings.learning_rate * rate_at(step - 1, times.total, times.warm_up, final)
        set_rate(run.optimiser, rate)
        losses.add(run.step_of(next(batches)))

        numbers: dict[str, Any] = {}
        if times.logs(step):
            numbers = {"loss": losses.close(step), "learning_rate": rate, "epoch": times.epoch(step)}
        if step in times.evaluations:
            measured = run.validate()
            numbers |= measured
            metrics = {name: float(value) for name, value in measured.items()}
        if schedule.due(step):
            tracker.wait()  # no measurement is left out, however fast the steps are
        tracker.step(step, **numbers)
        run.keep(step)
        if numbers and progress is not None and run.accelerator.is_main_process:
            progress(reached(step))

        stop = _agreed(signals, run.accelerator, at=times.logs(step))
        if step in times.saves or stop:
            run.save(step, losses)
        if stop and step < times.total:
            raise Interrupted(stop, step)
    return reached(times.total)


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """Put SIGTERM and SIGINT on a list, so that no step is torn; only the main thread can do that."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {
        number: signal.signal(number, lambda received, _: noted.append(received))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _agreed(signals: list[int], accelerator: Any, at: bool) -> int:
    """The signal on which all processes stop after this step, or 0. Several agree only `at` some steps."""
    if accelerator.num_processes == 1:
        return signals[0] if signals else 0
    if not at:
        return 0
    noted = torch.tensor(float(signals[0] if signals else 0), device=accelerator.device)
    return int(accelerator.gather(noted[None]).max())
