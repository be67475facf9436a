"""The training loop: every step of a run, recorded as it goes."""

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
from rankrise.foundations.progress import Meter, unseen
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._checkpoint import load_checkpoint, save_checkpoint
from rankrise.train._kernels import chosen_kernels
from rankrise.train._losses import RecentLosses
from rankrise.train._prepared import Prepared, prepared
from rankrise.train._rate import rate_at, set_rate
from rankrise.train._reached import Reached, end_of
from rankrise.train._resumable import refuse_gaps, run_in
from rankrise.train._series import forget_series_after, keep_in_series
from rankrise.train._sources import Batch


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
    run = prepared(settings, folder, note, meter)
    with run.tracker, _signals_noted() as signals, chosen_kernels(settings):
        _refuse_losses(run.tracker)
        reached = _to_the_end(run, signals, progress)
    _refuse_losses(run.tracker)
    return reached


def _to_the_end(run: Prepared, signals: list[int], progress: Callable[[Reached], None] | None) -> Reached:
    """Train from the newest checkpoint to the last step, or until a signal."""
    settings, times, tracker = run.settings, run.times, run.tracker
    final = settings.final_learning_rate / settings.learning_rate
    schedule = times.schedule()
    last, losses = _left_off(run)
    batches = _batches(run, first=last)
    metrics: dict[str, float] = {}

    for step in range(last + 1, times.total + 1):
        rate = settings.learning_rate * rate_at(step - 1, times.total, times.warm_up, final)
        set_rate(run.optimiser, rate)
        losses.add(run.step_of(next(batches)))

        numbers: dict[str, Any] = {}
        if times.logs(step):
            numbers = {"loss": losses.close(step), "learning_rate": rate, "epoch": times.epoch(step)}
        if times.evaluates(step):
            measured = _validate(run)
            numbers |= measured
            metrics = {name: float(value) for name, value in measured.items()}
        if schedule.due(step):
            tracker.wait()  # so that none is left out, however fast the steps are
        tracker.step(step, **numbers)
        _keep(run, step)
        if numbers and progress is not None and run.accelerator.is_main_process:
            progress(run.reached(step, losses.known, metrics))

        stop = _agreed(signals, run.accelerator, at=times.logs(step))
        if times.saves(step) or stop:
            _save(run, step, losses)
        if stop and step < times.total:
            raise Interrupted(stop, step)
    return run.reached(times.total, losses.known, metrics)


def _left_off(run: Prepared) -> tuple[int, RecentLosses]:
    """The step of the newest checkpoint, now in the network, and its open window of losses; a new run records
    its beginning."""
    losses = RecentLosses(min(run.settings.log_every, run.times.total), run.accelerator)
    last, open_window = load_checkpoint(run.place, run.model, run.optimiser, run.accelerator)
    if last:
        refuse_gaps(run.place, run.times, last)
    losses.resume(open_window)
    forget_series_after(run.place, last, run.accelerator)
    if last == 0:
        run.tracker.step(0)
        _keep(run, 0)
    return last, losses


def _save(run: Prepared, step: int, losses: RecentLosses) -> None:
    """Save a checkpoint, which the record reaches."""
    window = losses.open_window(step)
    run.tracker.flush()
    _refuse_losses(run.tracker)
    save_checkpoint(run.place, step, run.model, run.optimiser, run.accelerator, window)


def _keep(run: Prepared, step: int) -> None:
    """Put the weights into the series that is kept, where this step belongs to it."""
    if run.times.keeps(step):
        keep_in_series(run.place, step, run.model, run.accelerator, run.settings.series_precision)


def _refuse_losses(tracker: watch.RankTracker) -> None:
    """Stop rather than train on without a record."""
    if tracker.lost:
        raise RankriseError(
            f"{tracker.folder} could not be recorded ({tracker.lost.rstrip('.')}): once that is mended, "
            "the same command goes on from the last checkpoint."
        )


def _batches(run: Prepared, first: int) -> Iterator[Batch]:
    """This process's share of every batch from update number `first` on."""
    epoch, number = divmod(first, run.times.epoch_steps)
    while True:
        yield from run.task.batches(epoch, number, run.settings.batch_size, run.share)
        epoch, number = epoch + 1, 0


def _validate(run: Prepared) -> dict[str, Tensor]:
    """The task's metrics over the whole validation set, in batches no larger than training takes at once."""
    processes = run.accelerator.num_processes
    whole = run.settings.batch_size // processes
    size = min(run.settings.micro_batch_size or whole, whole)
    batches = run.task.validation_batches(size * processes, run.share_of(size))
    scores = [run.score_of(batch).clone() for batch in batches]
    return run.task.metrics(run.accelerator.reduce(torch.stack(scores).sum(0), "sum"))


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
