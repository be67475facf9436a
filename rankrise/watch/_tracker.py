"""RankTracker: the rank growth of every head of a live training run, in any loop, on a `Schedule`.

The training thread copies due weights and numbers (see `_staging`) and goes on. The worker's thread waits for
them, measures, and writes the record.
"""

import atexit
import operator
import os
import time
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import distributed, nn

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.provenance import now
from rankrise.record.folder import RUN, Record, checksum, spectra_path
from rankrise.record.lock import Lock
from rankrise.watch import _measure as measuring
from rankrise.watch._begin import begin, named
from rankrise.watch._check import Batch
from rankrise.watch._check import check as check_heads
from rankrise.watch._families import PRODUCTS
from rankrise.watch._heads import unwrap
from rankrise.watch._staging import Copy, Number, Staging, Troubles, Worker, log
from rankrise.watch._streams import Stream, Streams
from rankrise.watch._units import find_units, several


@dataclass(frozen=True)
class Spaced:
    """Every step at first, then `per_doubling` of them while the step doubles: stages come on a logarithmic
    clock.

    >>> [step for step in range(100) if step in Spaced(4)]
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 56, 64, 80, 96]
    """

    per_doubling: int

    def __contains__(self, step: int) -> bool:
        doublings = (step // self.per_doubling).bit_length() - 1
        return doublings < 1 or step % (1 << doublings) == 0


@dataclass(frozen=True)
class Schedule:
    """When to measure: `often` stable ranks and leading singular values, `seldom` all singular values too.

    Each is a number n (every n-th step), a list of steps, or `Spaced(points per doubling of the step)`, the
    default. Where a full spectrum is due, the ranks are due too.

    >>> paper = Schedule(often=20, seldom=100)
    >>> [step for step in range(120) if paper.due(step)], [step for step in range(120) if paper.full(step)]
    ([0, 20, 40, 60, 80, 100], [0, 100])
    """

    often: int | Sequence[int] | Spaced = Spaced(16)
    seldom: int | Sequence[int] | Spaced = Spaced(2)

    def __post_init__(self) -> None:
        for name in ("often", "seldom"):
            asked = getattr(self, name)
            if isinstance(asked, Sequence):
                object.__setattr__(self, name, tuple(sorted(set(asked))))
            elif (asked.per_doubling if isinstance(asked, Spaced) else asked) < 1:
                raise RankriseError(f"{name} is {asked}: pass 1 or more, a list of steps, or Spaced(n).")

    def due(self, step: int) -> bool:
        """Whether anything is measured at this step."""
        return self._holds(step, self.often) or self.full(step)

    def full(self, step: int) -> bool:
        """Whether the full spectra are measured at this step."""
        return self._holds(step, self.seldom)

    @staticmethod
    def _holds(step: int, asked: int | Sequence[int] | Spaced) -> bool:
        if isinstance(asked, Sequence):
            place = bisect_left(asked, step)
            return asked[place : place + 1] == (step,)
        return step % asked == 0 if isinstance(asked, int) else step in asked


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

    Tracked are `products` of `layers` (numbers or name patterns) and `heads` (numbers), and other weight
    `matrices` (name patterns, such as "*.mlp.*"), with `top` leading singular values each. The initial
    weights are kept, and changes measured, on the model's device or the "cpu" (`keep`). A batch as `check`
    proves first that the heads are read as the model uses them (see `watch.check`).

    It never changes training. A failure is logged and training goes on; `strict` raises it instead. A folder
    that holds this run already is continued: rows from the first `step` on are replaced. One that holds
    another run, or would be replaced as a whole, is refused; `overwrite` removes it. docs/tracking.md says
    more.
    """

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
        if keep not in ("model", "cpu") or top < 1:
            raise RankriseError(f"keep is {keep!r} and top {top}: pass 'model' or 'cpu', and 1 or more.")
        self.folder = Path(folder)
        self._model, self._schedule, self._top = model, schedule, top
        self._troubles = Troubles(strict)
        self._streams = Streams(streams, self._troubles.note)
        self._last: int | None = None
        self._on = self._closed = False
        if check is not None:
            proof = check_heads(model, check)
            if not proof.proved:
                warnings.warn(f"Heads of the tracked model: {proof}", stacklevel=2)
        self._units = find_units(model, products, layers, heads, matrices)
        if _rank() != 0:
            self._take_part()
            return
        self._staging = Staging(model, self._units, keep, self._troubles)
        about = {
            "model": type(unwrap(model)).__name__,
            "settings": {
                "schedule": asdict(schedule),
                "products": [product for product in PRODUCTS if product in several(products)],
                "top": top,
                "keep": keep,
                "digits": measuring.DIGITS,
            },
            "device": self._staging.devices[self._units[0].name],
            "note": note,
            "extra": dict(extra or {}),
        }
        try:
            self._lock = Lock(self.folder)
            try:
                self._beginning = begin(self.folder, self._units, self._staging.initial, about, overwrite)
                self._record = Record(self.folder)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            if strict:
                raise
            self._troubles.lose(f"opening {self.folder}", error, "nothing of this run is recorded")
            return
        self._worker = Worker(self._staging.devices.values(), self._attempt)
        self._process = os.getpid()
        self._on, self._touched, self._last_sha256 = True, not self._beginning.resumed, ""
        atexit.register(self._close, finished=False)
        log.info("%s: %r", "Continues" if self._beginning.resumed else "Tracks", self)

    @property
    def lost(self) -> str:
        """Why something is missing from the record that should be on disk; empty while nothing is."""
        return self._troubles.lost

    def step(self, step: int, loss: Number | None = None, **metrics: Number) -> None:
        """Call it after each optimizer step, on every process: it costs microseconds when nothing is due.

        `loss` and `metrics` are numbers, or tensors with one, which are not waited for. A step may come
        several times, with more numbers; the later value of a name counts. A step below the last one means
        that training went back: what was recorded from there on is dropped, with a warning.
        """
        if _capturing():
            return
        try:
            self._step(operator.index(step), metrics if loss is None else {"loss": loss, **metrics})
        except Exception as error:
            self._troubles.lose("a step", error)
        self._troubles.check()

    def wait(self) -> None:
        """Wait until the steps so far are written; `flush` also makes them outlast a power cut."""
        if self._on:
            self._worker.wait()
            self._troubles.check()

    def flush(self) -> None:
        """Wait until all steps so far are on the disk: call it before the trainer saves a checkpoint."""
        if self._on:
            self._worker.wait()
            self._attempt("writing to disk", self._record.sync)
            self._troubles.check()

    def close(self, finished: bool = True) -> None:
        """End the record, on every process, with the last step in full: call it while the model has the
        weights of that step. With `finished=False` it is not measured, and the run counts as broken off."""
        self._end(finished)
        self._troubles.check()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(finished=error is None, stopped="" if error is None else first_line(error))
        if error is None:
            self._troubles.check()

    def __repr__(self) -> str:
        layers = sum(unit.is_layer for unit in self._units)
        about = f"{layers} layers and {len(self._units) - layers} other matrices; in {self.folder}"
        lost = f", incomplete: {self.lost}" * bool(self.lost)
        return f"RankTracker({type(unwrap(self._model)).__name__}: {about}{lost})"

    # A step, on the training thread.

    def _step(self, step: int, numbers: Mapping[str, Number]) -> None:
        if step < 0:
            raise RankriseError(f"step is {step}: pass 0 or more, counting on over epochs.")
        if self._closed:
            raise RankriseError(f"the tracker of {self.folder} is closed: call step before close.")
        last, self._last = self._last, step
        due = step != last and self._schedule.due(step)
        if self._on and (last is None or step < last):
            self._go_back(step, last)
        if not self._on:
            if due:
                self._take_part()
            return
        moment = round(time.time(), 3)
        if due:  # before anything that can fail on this process alone: others may wait for its part
            full, copy = self._schedule.full(step), self._staging.take()
            if copy is None:
                self._troubles.behind()
            else:
                self._worker.put("measuring", lambda: self._measure(step, moment, full, copy))
        if numbers:
            arrived = self._staging.numbers(numbers)
            self._worker.put("writing a step", lambda: self._write(step, moment, arrived()))

    def _take_part(self) -> None:
        """Gather what is sharded, because the process that keeps the record does."""
        for unit in self._units:
            if unit.sharded:
                unit.read()

    def _go_back(self, step: int, last: int | None) -> None:
        """The run starts at `step`, or goes back there from `last`: drop what was recorded from there on."""
        self._worker.wait()
        begun, record = self._beginning, self._record
        try:
            if last is None and begun.resumed:
                if not record.has_before(step) and (begun.finished or not begun.same):
                    what = "this run, finished," if begun.finished else "a run with other initial weights"
                    raise RankriseError(
                        f"{self.folder} holds {what} and continuing at step {step} would replace all of it: "
                        "pass another folder, or overwrite=True to start over."
                    )
                record.write_about(begun.info)  # it is not finished any more
            self._touched = True
            dropped = record.cut(step)
        except Exception as error:
            self._touched = False
            self._close(finished=False)
            if last is None and isinstance(error, RankriseError):
                self._troubles.lost, self._troubles.refused = str(error), error
            else:
                self._troubles.lose("continuing the run", error, "nothing more of this run is recorded")
            return
        if dropped and (begun.finished or last is not None):
            log.warning(
                "Tracking: step %d comes again in %s: %d rows from there on are dropped; pass a step that "
                "counts on over epochs.",
                *(step, self.folder, dropped),
            )
        if last is None and not spectra_path(self.folder, None).exists():
            self._worker.put("measuring the initial weights", self._measure_initial)

    # Jobs, on the worker's thread.

    def _write(self, step: int, moment: float, numbers: dict[str, float]) -> None:
        try:
            self._record.steps.append(step, {"time": moment, **numbers})
        finally:  # on a full disk, streams go on
            self._streams.write(step, numbers)

    def _measure_initial(self) -> None:
        with self._staging.beside():
            values = measuring.initial_spectra(self._units, self._beginning.initial)
        self._record.add_spectra(None, values)

    def _measure(self, step: int, moment: float, full: bool, copy: Copy, last: bool = False) -> None:
        """The change of every unit at a step; if that is recorded already, what it lacks. A model with the
        `last` weights may go on with the run."""
        known = self._record.ranks.last == step
        with self._staging.arrived(copy) as weights:
            if last and len(weights) == len(self._units):
                self._last_sha256 = checksum(named(self._units, weights))
            if known and spectra_path(self._record.folder, step).exists():
                return
            changes = [
                measuring.UnitChange(unit, self._beginning.initial[unit.name], weights[unit.name])
                for unit in self._units
                if unit.name in weights
            ]
            results = measuring.measure(changes, self._top, full)
        if full:
            self._record.add_spectra(step, measuring.spectra_of(results))
        if not known:
            self._record.ranks.append(step, {"time": moment, **measuring.row_of(self._units, results)})
            self._streams.write(step, measuring.summary_of(self._units, results))

    # The end, and what goes wrong.

    def _end(self, finished: bool, stopped: str = "") -> None:
        if not self._closed:
            self._closed = True
            if finished and self._last is not None and not _capturing():
                self._attempt("measuring", self._measure_last, self._last)
            self._close(finished, stopped)

    def _measure_last(self, step: int) -> None:
        """The last step in full. Every process takes part in gathering, whether or not it is measured yet."""
        if not self._on:
            self._take_part()
            return
        self._worker.wait()  # until there is room
        copy, moment = self._staging.take(), round(time.time(), 3)
        assert copy is not None
        self._worker.put("measuring", lambda: self._measure(step, moment, True, copy, last=True))

    def _close(self, finished: bool, stopped: str = "") -> None:
        """`stopped` is what broke the run off. A run that has lost something is not finished; one that was
        resumed and got no step stays as it was."""
        if not self._on or os.getpid() != self._process:  # a forked copy leaves the record alone
            return
        self._on = False
        atexit.unregister(self._close)
        self._worker.close()
        if self._touched:
            self._attempt("writing to disk", self._record.sync)
            stopped = stopped or self.lost
            info = self._beginning.info | {"finished": now() if finished and not stopped else None}
            info |= {"left_out": dict(self._troubles.counts), "last_sha256": self._last_sha256}
            info |= {"stopped": stopped} if stopped else {}
            self._attempt(f"writing {RUN}", self._record.write_about, info)
        self._attempt("closing", self._record.close)
        self._lock.release()
        self._streams.close()  # last: whatever becomes of them, the record is whole

    def _attempt(self, doing: str, job: Callable[..., Any], *arguments: Any) -> None:
        try:
            job(*arguments)
        except (Exception, SystemExit) as error:
            lost = self._record.lost if hasattr(self, "_record") else ""  # other processes have none
            if lost and isinstance(error, (OSError, RankriseError)):  # logged once, whatever was written
                doing, error = "recording", RankriseError(lost)
            self._troubles.lose(doing, error, "nothing more of this run is recorded" if lost else "")


def _capturing() -> bool:
    """Whether a CUDA graph is being captured: nothing that happens now is meant."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _rank() -> int:
    """The number of this process among those that train the model together."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank()
    return int(os.environ.get("RANK", "0")) if distributed.is_torchelastic_launched() else 0
