"""Beside training: copies of its weights and losses, the thread that uses them, and what goes wrong.

At a due step the weights are copied on the stream of training, which takes microseconds on the device and
makes them those of that step. The worker waits for an event and measures the copies on a stream of its own.
The number of copies is bounded. While none is free the worker is behind, and the step is left out.
"""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankrise.foundations.device import allowed_cores, use_threads, without_autocast
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.record.folder import RESERVED
from rankrise.watch._units import Tensors, Unit

COPIES_BYTES, COPIES = 2**28, 32  # what all copies together may take beside the first, and how many there are

Number = float | int | Tensor
log = logging.getLogger("rankrise")


class Troubles:
    """Failures by what was being done. Training goes on; with `strict`, `check` raises the first one."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.lost = ""  # why something is missing from the record
        self.counts: Counter[str] = Counter()
        self.refused: Exception | None = None  # what the next `check` raises
        self._logged: set[object] = set()

    def lose(self, doing: str, error: BaseException, remedy: str = "") -> None:
        """A failure by which something is missing from the record now."""
        self.lost = self.lost or f"{doing} failed ({first_line(error).rstrip('.')})"
        self.note(doing, error, remedy or "tracking goes on as soon as it can")

    def note(self, doing: str, error: BaseException, remedy: str = "tracking goes on without it") -> None:
        """A failure that loses nothing of the record."""
        self.counts[doing] += 1
        cause = (doing, type(error), getattr(error, "errno", None))
        if not isinstance(error, Exception):  # SystemExit must not end training when it is raised
            error = RuntimeError(repr(error))
        if self.strict:
            self.refused = self.refused or error
        elif cause not in self._logged:
            self._logged.add(cause)
            log.error(
                "Tracking: %s failed (%s: %s). Training goes on; %s. Logged once for this cause.",
                *(doing, type(error).__name__, error, remedy),
                exc_info=None if isinstance(error, (OSError, RankriseError)) else error,
            )

    def behind(self) -> None:
        """Count a measurement that was left out, and warn the first time."""
        self.counts["measurements"] += 1
        if self.counts["measurements"] == 1:
            log.warning(
                "Tracking: falls behind, as measuring takes longer than training between measured steps: "
                "some are left out; pass a Schedule with fewer. Logged once; run.json counts it."
            )

    def check(self) -> None:
        """Raise what was refused or, with `strict`, the first failure, once."""
        if self.refused is not None:
            error, self.refused = self.refused, None
            raise error


class Worker:
    """A thread that does jobs in order and leaves the cores to training; `attempt` catches their errors."""

    def __init__(self, devices: Iterable[torch.device], attempt: Callable[..., None]) -> None:
        # Beside an accelerator a quarter of the host's cores, at most four; one where training needs them.
        on_cpu = all(device.type == "cpu" for device in devices)
        self._cores = 1 if on_cpu else max(1, min(4, allowed_cores() // 4))
        self._attempt = attempt
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="rankrise-tracker", daemon=True)
        self._thread.start()

    def put(self, doing: str, job: Callable[[], Any]) -> None:
        self._jobs.put((doing, job))

    def wait(self) -> None:
        """Until every job so far is done."""
        done = threading.Event()
        self.put("waiting", done.set)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        use_threads(self._cores)
        with torch.no_grad():
            while (job := self._jobs.get()) is not None:
                self._attempt(*job)


@dataclass(eq=False)
class Copy:
    """The weights by unit and role, once the `events` have happened."""

    weights: dict[str, Tensors]
    events: list[torch.cuda.Event]


class Staging:
    """Copies of the weights, a few at a time. `initial` are the weights at the beginning, where changes are
    measured: on the model's device, or on the CPU if that is asked for or the device lacks float64."""

    def __init__(self, model: nn.Module, units: Sequence[Unit], keep: str, troubles: Troubles) -> None:
        self._model, self._units, self._troubles = model, units, troubles
        self.initial: dict[str, Tensors] = {}
        self.devices: dict[str, torch.device] = {}  # where the weights of each unit are in the model
        for unit in units:  # one after another: only one sharded layer is whole at a time
            tensors = unit.read()
            device = self.devices[unit.name] = next(iter(tensors.values())).device
            target = device if keep == "model" and device.type in ("cpu", "cuda") else torch.device("cpu")
            whole = torch.contiguous_format
            self.initial[unit.name] = {
                role: one.to(target, copy=True, memory_format=whole) for role, one in tensors.items()
            }
        size = sum(one.nbytes for tensors in self.initial.values() for one in tensors.values())
        self._passes_device = size <= COPIES_BYTES  # else copied to the host at once
        # A stack, so that memory is taken for as many copies as are needed.
        self._free = [Copy({}, []) for _ in range(max(1, min(COPIES, COPIES_BYTES // size)))]
        on_gpus = {device for device in self.devices.values() if device.type == "cuda"}
        self._streams = {device: torch.cuda.Stream(device) for device in on_gpus}
        for device in on_gpus:
            # Two threads must not be the first to decompose a matrix there at once.
            torch.linalg.cholesky_ex(torch.ones(1, 1, device=device))
            torch.cuda.synchronize(device)  # the initial weights are there, for every stream

    def take(self) -> Copy | None:
        """Copy the weights as they are now; None if the worker is behind. Sharded ones are gathered in either
        case, because the other processes take part."""
        copy = self._free.pop() if self._free else None
        present = set(self._model.modules())
        copied: dict[str, Tensors] = {}
        with torch.no_grad(), ExitStack() as stack:
            for kind in {device.type for device in self.devices.values()}:
                stack.enter_context(without_autocast(kind))
            for unit in self._units:
                if copy is None and not unit.sharded:
                    continue
                try:
                    if unit.module not in present:
                        raise RankriseError(f"{unit.name} is no longer a part of the model")
                    tensors = unit.read()
                    if copy is not None:
                        room = self._room(unit, tensors, copy.weights.get(unit.name, {}))
                        torch._foreach_copy_(list(room.values()), list(tensors.values()), non_blocking=True)
                        copied[unit.name] = room
                except Exception as error:
                    self._troubles.lose(f"reading {unit.name}", error)
        if copy is not None:
            copy.weights, copy.events = copied, self._events()
        return copy

    @contextmanager
    def beside(self) -> Iterator[None]:
        """On the worker's thread: what is computed on an accelerator goes to streams beside training's."""
        with ExitStack() as streams:
            for stream in self._streams.values():
                streams.enter_context(torch.cuda.stream(stream))
            try:
                yield
            finally:  # the memory of what was used may be written again
                for stream in self._streams.values():
                    stream.synchronize()

    @contextmanager
    def arrived(self, copy: Copy) -> Iterator[dict[str, Tensors]]:
        """On the worker's thread: the weights by unit, once they are there. Afterwards the copy is free."""
        try:
            for event in copy.events:
                event.synchronize()
            with self.beside():
                yield {
                    name: {role: one.to(self.initial[name][role].device) for role, one in tensors.items()}
                    for name, tensors in copy.weights.items()
                }
        finally:
            self._free.append(copy)

    def numbers(self, given: Mapping[str, Number]) -> Callable[[], dict[str, float]]:
        """Numbers as they are now. The worker's thread calls the result, which waits for tensors."""
        held: dict[str, Any] = {}
        for name, number in given.items():
            try:
                if name in RESERVED:
                    raise RankriseError(f"a metric cannot be called {name!r}: pass another name.")
                if isinstance(number, Tensor):
                    held[name] = number.detach().clone().reshape(())
                else:
                    plain = float(number)
                    held[name] = number if isinstance(number, int) else plain
            except (RankriseError, RuntimeError, TypeError, ValueError, OverflowError) as error:
                self._troubles.note(f"recording {name}", error)
        on_gpu = any(isinstance(one, Tensor) and one.is_cuda for one in held.values())
        events = self._events() if on_gpu else []

        def arrived() -> dict[str, float]:
            for event in events:
                event.synchronize()
            with self.beside():
                return {name: one.item() if isinstance(one, Tensor) else one for name, one in held.items()}

        return arrived

    def _room(self, unit: Unit, tensors: Tensors, old: Tensors) -> Tensors:
        """Memory that copies can reach without being waited for: where changes are measured, or first on the
        device. It is the `old` unless the weights have another shape or type now."""
        source, target = self.devices[unit.name], next(iter(self.initial[unit.name].values())).device
        if source.type == "cuda" and self._passes_device and unit.live:
            target = source
        pinned = source.type == "cuda" and target.type == "cpu"
        return {
            role: old[role]
            if role in old and (old[role].shape, old[role].dtype) == (tensor.shape, tensor.dtype)
            else torch.empty_like(tensor, device=target, pin_memory=pinned)
            for role, tensor in tensors.items()
        }

    def _events(self) -> list[torch.cuda.Event]:
        """Events after what the calling thread's streams have been given so far."""
        events = []
        for device in self._streams:
            events.append(torch.cuda.Event(blocking=True))
            events[-1].record(torch.cuda.current_stream(device))
        return events
