"""The training loop, from the settings to a tracked run in a folder."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.optional import require
from rankrise.foundations.progress import Meter, unseen
from rankrise.foundations.record.names import BEGUN, CHECKPOINTS, RANKS, STEPS
from rankrise.foundations.record.run_file import has_run, read_run
from rankrise.foundations.settings import names_of
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._checkpoint import load_checkpoint, save_checkpoint
from rankrise.train._kernels import chosen_kernels
from rankrise.train._losses import RecentLosses
from rankrise.train._optimiser import optimiser_of
from rankrise.train._rate import rate_at, set_rate
from rankrise.train._series import forget_series_after, keep_in_series
from rankrise.train._sources import Batch
from rankrise.train._step import Step, compiled, eager_score, eager_step, graphed
from rankrise.train._task import Task, task_of
from rankrise.train._times import Times


@dataclass(frozen=True)
class Reached:
    """Where a run is."""

    step: int
    total_steps: int
    step_units: int
    """Images or tokens in a step."""
    epoch: float
    loss: float
    """Mean of the last recorded window."""
    metrics: dict[str, float]
    """Of the latest validation."""
    evaluated: bool
    """Whether that was at this step."""

    @property
    def result(self) -> str:
        """The loss and the metrics in words."""
        numbers = {"loss": self.loss, **self.metrics}
        return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


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
    """Train as `settings` say and record the run in `folder`; a run that is there already is resumed.

    `progress` is called while it trains; `meter` shows how far the data are decoded or tokenised before.

    Call it under `accelerate launch` for several processes: they share each batch.
    """
    folder = Path(folder)
    found = run_in(folder, settings)
    if found is not None and found.get("finished"):
        return end_of(folder)
    accelerator = require("accelerate", extra="train", purpose="training").Accelerator(mixed_precision="no")
    if settings.batch_size % accelerator.num_processes:
        raise RankriseError(
            f"batch_size is {settings.batch_size}, which {accelerator.num_processes} processes cannot share "
            "equally: pass a multiple."
        )
    if settings.optimiser == "random-walk" and accelerator.num_processes > 1:
        raise RankriseError(
            f"optimiser is random-walk, and each of {accelerator.num_processes} processes would walk its own "
            "way: train on one."
        )

    # What is trained, and when what happens.
    torch.manual_seed(settings.seed + accelerator.process_index)
    with accelerator.main_process_first():  # it decodes or tokenises, the others find that done
        task = task_of(settings, accelerator.device, meter)
    times = Times(settings, task.examples)
    model = task.model()
    optimiser = optimiser_of(settings, model, accelerator.device)
    model, optimiser = accelerator.prepare(model.to(accelerator.device), optimiser)
    model.train()

    units = settings.batch_size * task.units_per_example
    extra = {
        "recipe": settings.to_dict(),
        "task": task.name,
        "data": settings.data_name or settings.data,
        "epoch_steps": times.epoch_steps,
        "total_steps": times.total,
        "step_units": units,
        "processes": accelerator.num_processes,
    }
    schedule = times.schedule()
    place = folder.resolve()  # a link on the way may point to another run by the time of a checkpoint
    tracker = watch.RankTracker(
        model,
        folder,
        schedule=schedule,
        matrices=settings.matrices,
        top=settings.leading_values,
        note=note,
        extra=extra,
    )

    # How a step is computed.
    alone = accelerator.num_processes == 1
    loss_of, score_of = compiled(settings, task, plain=alone)
    step_of = eager_step(settings, accelerator, model, optimiser, loss_of)
    score_of = eager_score(settings, accelerator, model, score_of)
    on_gpu = accelerator.device.type == "cuda"
    if settings.cuda_graph and settings.compile != "none" and alone and on_gpu:
        step_of, score_of = graphed(step_of, score_of, before_capture=tracker.flush)

    final = settings.final_learning_rate / settings.learning_rate
    losses = RecentLosses(settings.log_every, accelerator)
    metrics: dict[str, float] = {}

    def where(step: int) -> Reached:
        return Reached(
            step,
            times.total,
            units,
            times.epoch(step),
            losses.known,
            metrics,
            evaluated=times.evaluates(step),
        )

    def keep(step: int) -> None:
        if times.keeps(step):
            keep_in_series(place, step, model, accelerator, settings.series_precision)

    with tracker, _signals_noted() as signals, chosen_kernels(settings):
        _refuse_losses(tracker)
        # Where it left off.
        last, open_window = load_checkpoint(place, model, optimiser, accelerator)
        if last:
            _refuse_gaps(place, times, last)
        losses.resume(open_window)
        forget_series_after(place, last, accelerator)
        if last == 0:
            tracker.step(0)
            keep(0)
        batches = _batches(task, settings, times, accelerator, first=last)

        for step in range(last + 1, times.total + 1):
            rate = settings.learning_rate * rate_at(step - 1, times.total, times.warm_up, final)
            set_rate(optimiser, rate)
            losses.add(step_of(next(batches)))

            numbers: dict[str, Any] = {}
            if times.logs(step):
                numbers = {"loss": losses.close(step), "learning_rate": rate, "epoch": times.epoch(step)}
            if times.evaluates(step):
                measured = _validate(task, settings, accelerator, score_of)
                numbers |= measured
                metrics = {name: float(value) for name, value in measured.items()}
            if schedule.due(step):
                tracker.wait()  # so that none is left out, however fast the steps are
            tracker.step(step, **numbers)
            keep(step)
            if numbers and progress is not None and accelerator.is_main_process:
                progress(where(step))

            stop = _agreed(signals, accelerator, at=times.logs(step))
            if times.saves(step) or stop:
                window = losses.open_window(step)
                tracker.flush()
                _refuse_losses(tracker)  # the record reaches to each checkpoint
                save_checkpoint(place, step, model, optimiser, accelerator, window)
            if stop and step < times.total:
                raise Interrupted(stop, step)
    _refuse_losses(tracker)
    return where(times.total)


def _refuse_losses(tracker: watch.RankTracker) -> None:
    """Stop rather than train on without a record."""
    if tracker.lost:
        raise RankriseError(
            f"{tracker.folder} could not be recorded ({tracker.lost.rstrip('.')}): once it can be written, "
            "the same command goes on from the last checkpoint."
        )


def _refuse_gaps(folder: Path, times: Times, last: int) -> None:
    """Refuse to go on from step `last` where the record does not reach there whole, as it did when that was
    saved."""
    advice = f"restore it, or remove {folder / CHECKPOINTS} to train from the beginning"
    if last > times.total:
        raise RankriseError(f"{folder} has a checkpoint of step {last} of {times.total}: {advice}.")
    run, schedule, steps = watch.load(folder), times.schedule(), range(1, last + 1)
    for name, kept, due in (
        (STEPS, run.steps()["step"], times.logs),
        (RANKS, run.measured, schedule.due),
        ("spectra", run.spectra_steps, schedule.full),
    ):
        there = set(kept.tolist())
        missing = next((step for step in steps if due(step) and step not in there), None)
        if missing is not None:
            raise RankriseError(
                f"{folder / name} lacks step {missing}, and the newest checkpoint is of step {last}: "
                f"{advice}."
            )


def run_in(folder: Path, settings: TrainSettings) -> dict[str, Any] | None:
    """The `run.json` of a run with these settings, or None if it has not begun; anything else is refused."""
    if not has_run(folder):
        if folder.exists() and (not folder.is_dir() or _foreign(folder)):
            raise RankriseError(f"{folder} exists and is not a run: pass a new or an empty folder.")
        return None
    info = read_run(folder, "tracked")
    recipe = watch.TrackedRun(folder, info).recipe
    if not recipe:
        raise RankriseError(f"{folder} does not hold a run of 'rankrise train': pass another folder.")
    for name, value in settings.to_dict().items():
        if name in names_of(TrainSettings, "machine"):
            continue
        if name not in recipe:
            raise RankriseError(
                f"{folder} holds a run of an earlier version, which had no setting {name!r}: pass another "
                "folder."
            )
        if recipe[name] != value:
            raise RankriseError(
                f"{folder} holds a run with {name} {recipe[name]}, not {value}: pass the same settings "
                "to resume it, or another folder."
            )
    return info


def _foreign(folder: Path) -> bool:
    """Whether a folder without a `run.json` holds anything that no beginning run left there."""
    return any(not name.startswith(".") for name in set(os.listdir(folder)) - BEGUN)


def end_of(folder: Path) -> Reached:
    """Where a finished run ended, from its record."""
    run = watch.load(folder)
    known = ("step", "time", "loss", "learning_rate", "epoch")
    try:
        last = {name: float(values[-1]) for name, values in run.steps().items()}
        if last["step"] < run.extra["total_steps"]:
            raise ValueError(f"it ends at step {last['step']:g} of {run.extra['total_steps']}")
        return Reached(
            int(last["step"]),
            int(run.extra["total_steps"]),
            int(run.extra["step_units"]),
            last["epoch"],
            last["loss"],
            {name: value for name, value in last.items() if name not in known},
            evaluated=True,
        )
    except (LookupError, TypeError, ValueError, OverflowError) as error:
        raise RankriseError(
            f"{folder} is finished, but its record does not tell how ({error!r:.60}): restore it."
        ) from error


def _batches(
    task: Task, settings: TrainSettings, times: Times, accelerator: Any, first: int
) -> Iterator[Batch]:
    """This process's share of every batch from update number `first` on."""
    epoch, number = divmod(first, times.epoch_steps)
    while True:
        yield from task.batches(epoch, number, settings.batch_size, _share(settings, accelerator))
        epoch, number = epoch + 1, 0


def _share(settings: TrainSettings, accelerator: Any) -> slice:
    size = settings.batch_size // accelerator.num_processes
    return slice(accelerator.process_index * size, (accelerator.process_index + 1) * size)


def _validate(task: Task, settings: TrainSettings, accelerator: Any, score_of: Step) -> dict[str, Tensor]:
    """The task's metrics over the whole validation set, in batches no larger than training takes at once."""
    whole = settings.batch_size // accelerator.num_processes
    share = min(settings.micro_batch_size or whole, whole)
    mine = slice(accelerator.process_index * share, (accelerator.process_index + 1) * share)
    batches = task.validation_batches(share * accelerator.num_processes, mine)
    scores = [score_of(batch).clone() for batch in batches]
    return task.metrics(accelerator.reduce(torch.stack(scores).sum(0), "sum"))


@contextmanager
def _signals_noted() -> Iterator[list[int]]:
    """SIGTERM and SIGINT are put on a list, so that a step is never torn; a thread leaves them to others."""
    noted: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = {}
    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.signal(number, lambda received, _: noted.append(received))
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _agreed(signals: list[int], accelerator: Any, at: bool) -> int:
    """The signal on which all processes stop after this step; 0: none. Several agree only `at` some steps."""
    if accelerator.num_processes == 1:
        return signals[0] if signals else 0
    if not at:
        return 0
    noted = torch.tensor(float(signals[0] if signals else 0), device=accelerator.device)
    return int(accelerator.gather(noted[None]).max())
