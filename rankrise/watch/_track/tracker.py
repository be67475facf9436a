"""RankTracker: the rank growth of every head of a live training run, in any loop."""

import atexit
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import torch
from torch import distributed, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.passed import typed
from rankrise.foundations.provenance import now
from rankrise.foundations.text import printable
from rankrise.record.lock import Lock
from rankrise.record.names import RUN, spectra_path
from rankrise.record.shapes import LARGEST
from rankrise.watch._check import Batch, check_and_warn
from rankrise.watch._track.begin import begin
from rankrise.watch._track.described import described, in_words, notes_on
from rankrise.watch._track.jobs import Jobs
from rankrise.watch._track.record import Record
from rankrise.watch._track.scalars import Number, Scalars
from rankrise.watch._track.schedule import Schedule, step_number
from rankrise.watch._track.staging import Reading, Staging, first_reading
from rankrise.watch._track.streams import Stream, Streams
from rankrise.watch._track.troubles import Troubles, log
from rankrise.watch._track.weights import Choice, find_units
from rankrise.watch._track.worker import Worker, spare_cores


class RankTracker:
    """Follow the rank of every head's change since initialisation while a model trains.

    Create it before the first step, with the model where it trains; call `step` after `optimizer.step()` and
    `close` at the end. The folder is a record that `watch.load` reads, at any time.

    >>> import tempfile
    >>> from rankrise import watch
    >>> model = nn.TransformerEncoderLayer(d_model=8, nhead=2, dim_feedforward=8)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     tracker = watch.RankTracker(model, folder)
    ...     for step in range(1, 4):
    ...         loss = model(torch.ones(3, 5, 8)).square().mean()
    ...         loss.backward()
    ...         optimizer.step()
    ...         tracker.step(step, loss=loss)
    ...     tracker.close()
    ...     watch.load(folder).stable_rank("KQ").shape  # steps, layers, heads
    (3, 1, 2)

    What is tracked: `products` of `layers` (numbers or name patterns) and `heads` (numbers), and other
    weight `matrices` (name patterns, such as "*.mlp.*"); when: `schedule`. `top` leading singular values are
    kept. The initial weights are kept, and changes measured, on the `model`'s device or the "cpu". A batch as
    `check` proves first that the heads are read as the model uses them (see `watch.check`).

    It never changes training. A failure is logged and training goes on; `strict` raises it instead.
    A folder that holds this run already is continued: the rows from the first `step` on are replaced. One
    that holds another run, or this one from its first step to its end, is refused; with `overwrite` it is
    removed. `note` and `extra` go into run.json, numbers also to `streams`. docs/tracking.md has the rest.
    """

    @typed
    def __init__(
        self,
        model: nn.Module,
        folder: str | Path,
        *,
        schedule: Schedule = Schedule(),  # noqa: B008 (it is frozen)
        products: str | Iterable[str] = ("KQ", "VO"),
        layers: int | str | Iterable[int | str] | None = None,
        heads: int | Iterable[int] | None = None,
        matrices: str | Iterable[str] = (),
        top: int = 8,
        keep: Literal["model", "cpu"] = "model",
        strict: bool = False,
        note: str = "",
        extra: Mapping[str, Any] | None = None,
        streams: Iterable[Stream] = (),
        check: Batch | None = None,
        overwrite: bool = False,
    ) -> None:
        if keep not in ("model", "cpu"):
            raise RankriseError(f"keep is {keep!r}: pass 'model' or 'cpu'.")
        if not 1 <= top <= LARGEST:
            raise RankriseError(f"top is {top}: pass a whole number from 1 to {LARGEST}.")
        choice = Choice.of(products, layers, heads, matrices)
        self.folder = Path(folder)
        self._model, self._schedule, self._top = model, schedule, top
        self._troubles = Troubles(strict)
        self._streams = Streams(streams, self._troubles.note)
        self._last: int | None = None
        self._has_loss = False  # the last step
        self._on = self._closed = False
        self._off = ""  # why nothing is recorded, if something should be
        if check is not None:
            check_and_warn(model, check)
        self._units = find_units(model, choice)
        if _rank() != 0:
            self._take_part()
        else:
            reading = first_reading(self._units, keep)
            about = described(
                model,
                self._units,
                choice.products,
                schedule,
                top=top,
                keep=keep,
                device=reading.devices[self._units[0].name],
                note=note,
                extra=extra or {},
            )
            self._open(reading, keep, about, overwrite)

    @property
    def lost(self) -> str:
        """Why something of the record is missing that should be on disk; empty while nothing is."""
        return self._off or self._troubles.lost

    def step(self, step: int, loss: Number | None = None, **metrics: Number) -> None:
        """Call it after each optimizer step, on every process: it costs microseconds when nothing is due.

        `loss` and `metrics` are recorded with the step: numbers, or tensors with one, which are not waited
        for. Of a step that is given several times, they are put together, and the later value of a name
        counts. A step below the last one means that training went back: what was recorded from there on is
        dropped, with a warning.
        """
        if self._capturing():
            return
        numbers = metrics if loss is None else {"loss": loss, **metrics}
        try:
            self._step(step_number(step), numbers)
        except Exception as error:
            self._troubles.lose("a step", error)
        self._troubles.check()

    def wait(self) -> None:
        """Wait until the steps so far are measured and written: `flush` also has the disk keep them."""
        if self._on and not self._forked:
            self._worker.wait()
            self._troubles.check()

    def flush(self) -> None:
        """Wait until all steps so far are on disk, where a power cut leaves them: call it before the trainer
        saves a checkpoint. `lost` says if that could not be."""
        if self._on and not self._forked:
            self._worker.wait()
            self._sync()
            self._troubles.check()

    def close(self, finished: bool = True) -> None:
        """End the record, on every process. Calling it again does nothing.

        The last step is measured in full if it has not been, so call it while the model has the weights of
        that step. With `finished=False` it is not, and the run stands as one that was broken off.
        """
        self._end(finished)
        self._troubles.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        stopped = "" if error is None else first_line(error)
        self._end(finished=kind is None, stopped=stopped)
        if kind is None:
            self._troubles.check()

    def __repr__(self) -> str:
        off = self._off or (self._on and self._record.gone)
        state = f", off: {off}" if off else ", closed" * self._closed
        about = f"{in_words(self._model, self._units)}, in {self.folder}{state}"
        return printable(f"RankTracker({'; '.join([about, *notes_on(self._units)])})")

    def _open(self, reading: Reading, keep: str, about: dict[str, Any], overwrite: bool) -> None:
        """Everything that only the process which writes needs."""
        lock = None
        try:
            lock = Lock(self.folder)
            self._beginning = begin(self.folder, self._units, reading.weights, about, overwrite)
            self._staging = Staging(self._units, reading, keep, self._troubles.lose)
            self._record = Record(self.folder, lock, self._troubles.tell)
        except BaseException as error:
            if lock is not None:
                lock.release()
            if not isinstance(error, OSError) or self._troubles.strict:
                raise
            self._turn_off(f"opening {self.folder}", error)
            return
        self._lock, self._scalars = lock, Scalars()
        self._jobs = Jobs(
            self._units,
            self._beginning.initial,
            self._staging,
            self._scalars,
            self._record,
            self._streams,
            self._top,
        )
        self._worker = Worker(spare_cores(self._staging.on_accelerator), self._lose)
        self._process = os.getpid()
        self._on, self._begun = True, not self._beginning.resumed
        atexit.register(self._leave)
        log.info("%s: %r", "Continues" if self._beginning.resumed else "Tracks", self)

    def _step(self, step: int, numbers: Mapping[str, Number]) -> None:
        if self._closed:
            raise RankriseError(f"the tracker of {self.folder} is closed: call step before close.")
        if self._forked:
            raise RankriseError(
                f"the tracker of {self.folder} is that of the process which this one was forked from: call "
                "step there."
            )
        last, self._last = self._last, step
        if step == last and "loss" in numbers and self._has_loss:
            self._troubles.repeat(step)
        self._has_loss = "loss" in numbers or (step == last and self._has_loss)
        due = step != last and self._schedule.due(step)
        if self._on and (last is None or step < last):
            self._go_back(step, last)
        if due and not self._on:
            self._take_part()
        if not self._on:
            return
        moment = round(time.time(), 3)
        if due:  # before anything that can fail on this process alone: others may wait for its part
            self._take(step, moment)
        if numbers:
            row = self._scalars.take_row(numbers, self._troubles.note)
            self._worker.put("writing a step", partial(self._jobs.write_step, step, moment, row))

    def _take(self, step: int, moment: float) -> None:
        full = self._schedule.full(step)
        if full and self._staging.busy >= max(1, self._staging.count // 2):
            full = False
            self._troubles.skip("full spectra")
        place = self._staging.take()
        if place is None:
            self._troubles.skip("measurements")
        else:
            self._worker.put("measuring", partial(self._jobs.measure, step, moment, full, place))

    def _take_part(self) -> None:
        """Another process keeps the record, and gathers what is sharded: so does this one."""
        for unit in self._units:
            if unit.sharded:
                unit.read()

    def _go_back(self, step: int, last: int | None) -> None:
        """The run starts at `step`, or goes on there after `last`: drop what was recorded from there on."""
        self._worker.wait()
        try:
            if last is None:
                self._refuse_another_run(step)
                if self._beginning.resumed:  # it is not finished any more
                    self._record.write_about(self._beginning.info)
                self._begun = True
            dropped = self._record.cut(step)
        except Exception as error:
            self._close(finished=None)
            self._turn_off("continuing the run", error, refused=last is None)
            return
        if last is not None:
            log.warning(
                "Tracking: step went back from %d to %d: %d rows from step %d on are dropped; pass a step "
                "that counts on over epochs.",
                *(last, step, dropped, step),
            )
        elif self._beginning.finished and dropped:
            log.warning(
                "Tracking: the finished run in %s goes on at step %d: %d rows from there on are dropped.",
                *(self.folder, step, dropped),
            )
        if last is None and self._beginning.resumed:
            self._attempt("reading what is kept of the run", self._record.check_kept)
        if last is None and not spectra_path(self.folder, None).exists():
            self._worker.put("measuring the initial weights", self._jobs.write_initial)

    def _refuse_another_run(self, step: int) -> None:
        begun = self._beginning
        own = begun.same and not begun.finished  # it was broken off, and may start over
        if begun.resumed and not own and not self._record.has_before(step):
            which = "this run, finished" if begun.same else "a run with other initial weights"
            raise RankriseError(
                f"{self.folder} holds {which}, and continuing at step {step} would replace all of it: pass "
                "another folder, or overwrite=True to start over."
            )

    def _measure_last(self) -> None:
        """The last step in full. Only the worker knows what there is of it already, so that every process
        takes part in gathering, in any case."""
        if self._last is None or self._capturing():
            return
        if not self._on:
            self._take_part()
            return
        self._worker.wait()  # until a place is free
        place = self._staging.take()
        assert place is not None
        moment = round(time.time(), 3)
        self._worker.put("measuring", partial(self._jobs.measure, self._last, moment, True, place, last=True))

    def _turn_off(self, doing: str, error: Exception, refused: bool = False) -> None:
        self._off = f"{doing} failed ({error})"
        if refused and isinstance(error, RankriseError):
            self._troubles.refuse(error)
        else:
            self._troubles.note(doing, error, "nothing of this run is recorded")

    def _sync(self, last: bool = False) -> None:
        if not self._record.gone:
            try:
                self._record.sync(last)
            except Exception as error:
                self._lose("writing to disk", error)

    def _lose(self, doing: str, error: BaseException) -> None:
        gone = self._record.look_for_folder()
        if gone and isinstance(error, OSError):
            error = RankriseError(gone)
        self._troubles.lose(doing, error, "nothing more of this run is recorded" if gone else "")

    def _attempt(self, doing: str, job: Callable[[], Any]) -> None:
        try:
            job()
        except Exception as error:
            self._troubles.lose(doing, error)

    def _capturing(self) -> bool:
        """Whether a CUDA graph is being captured: nothing that happens now is meant."""
        return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def _end(self, finished: bool, stopped: str = "") -> None:
        if self._closed:
            return
        self._closed = True
        if self._forked:
            return
        if finished:
            self._attempt("measuring", self._measure_last)
        self._close(finished, stopped)

    def _close(self, finished: bool | None, stopped: str = "") -> None:
        """`finished` is None if the folder is another run's: then nothing of it is touched. `stopped` is what
        broke the run off, kept until it is continued. A run of which something is lost is not finished."""
        if not self._on:
            return
        self._on = False
        atexit.unregister(self._leave)
        self._worker.close()
        self._sync(last=True)
        if finished is not None and self._begun and not self._record.gone:
            lost, whole = self._troubles.lost, finished and not self._troubles.lost
            info = self._beginning.info | {"finished": now() if whole else None}
            info |= {"left_out": dict(self._troubles.counts), "last_sha256": self._record.last_weights}
            info |= {"sizes": self._record.sizes}
            info |= {"stopped": stopped or lost} if stopped or lost else {}
            self._attempt(f"writing {RUN}", partial(self._record.write_about, info))
        self._attempt("closing", self._record.close)
        self._lock.release()
        self._streams.close()  # last: whatever becomes of them, the record is whole

    def _leave(self) -> None:
        """At the end of the process without `close`: everything so far is written, and the run unfinished."""
        if not self._forked:
            self._close(finished=False)

    @property
    def _forked(self) -> bool:
        """Whether this is a copy in a process that was forked, which has no worker: the record is kept by the
        process that made the tracker."""
        return self._on and os.getpid() != self._process


def _rank() -> int:
    """The number of this process among those that train the model together."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0")) if distributed.is_torchelastic_launched() else 0
