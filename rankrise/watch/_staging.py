"""Weights and losses on their way from training to the worker: copied in order, never waited for.

At a due step the weights are copied on the stream of training, which takes microseconds on the device and
makes them those of that step. The worker waits for an event and measures the copies on a stream of its own.
While too many copies are waiting for it, it is behind, and the step is left out.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import RESERVED
from rankrise.watch._batches import without_autocast
from rankrise.watch._units import Tensors, Unit

# What all copies together may take beside the first, and how many there are at most.
COPIES_BYTES = 2**28
COPIES = 32

Number = float | int | Tensor


@dataclass(eq=False)
class Copy:
    """The tracked weights of one step by unit and role, once the `events` have happened."""

    weights: dict[str, Tensors] = field(default_factory=dict)
    events: list[torch.cuda.Event] = field(default_factory=list)


class Staging:
    """Copies of the weights, a few at a time. `initial` are the weights at the beginning, where changes are
    measured: on the model's device, or on the CPU if that is asked for or the device lacks float64."""

    def __init__(self, units: Sequence[Unit], keep: str, on_error: Callable[[str, Exception], None]) -> None:
        self._units, self._on_error = units, on_error
        self.initial: dict[str, Tensors] = {}
        self.devices: dict[str, torch.device] = {}
        """Where the weights of each unit are in the model."""
        for unit in units:  # one after another: only one sharded layer is whole at a time
            tensors = unit.read()
            device = self.devices[unit.name] = next(iter(tensors.values())).device
            target = device if keep == "model" and device.type in ("cpu", "cuda") else "cpu"
            self.initial[unit.name] = {
                role: torch.empty(one.shape, dtype=one.dtype, device=target).copy_(one)
                for role, one in tensors.items()
            }
        size = sum(one.nbytes for tensors in self.initial.values() for one in tensors.values())
        self.most = max(1, min(COPIES, COPIES_BYTES // size))
        self._passes_device = size <= COPIES_BYTES  # else copied to the host at once
        self._taken = self._done = 0  # each counted by one thread
        self._spare: deque[Copy] = deque()  # measured, with memory for others
        on_gpus = {device for device in self.devices.values() if device.type == "cuda"}
        self._streams = {device: torch.cuda.Stream(device) for device in on_gpus}
        for device in on_gpus:
            # Two threads must not be the first to decompose a matrix there at once.
            torch.linalg.cholesky_ex(torch.ones(1, 1, device=device))
            torch.cuda.synchronize(device)  # the initial weights are there, for every stream
            # The system gives pinned memory slowly: torch keeps what is free again.
            _ = [torch.empty((), pin_memory=True) for _ in range(256)]

    @property
    def on_accelerator(self) -> bool:
        """Whether training leaves the host's cores alone."""
        return any(device.type != "cpu" for device in self.devices.values())

    @property
    def busy(self) -> int:
        """How many copies the worker has not finished."""
        return self._taken - self._done

    def take(self) -> Copy | None:
        """Copy the weights as they are now; None if the worker is behind. Sharded ones are gathered in either
        case, because the other processes take part."""
        copy = None
        if self.busy < self.most:
            copy = self._spare.popleft() if self._spare else Copy()
        memory, copied = copy.weights if copy is not None else {}, {}
        with torch.no_grad(), contextlib.ExitStack() as stack:
            for kind in {device.type for device in self.devices.values()}:
                stack.enter_context(without_autocast(kind))
            sources: list[Tensor] = []
            targets: list[Tensor] = []
            for unit in self._units:
                if copy is None and not unit.sharded:
                    continue
                try:
                    tensors = unit.read()
                except Exception as error:
                    self._on_error(f"reading {unit.name}", error)
                    continue
                if copy is not None:
                    copied[unit.name] = self._room_for(unit, tensors, memory.get(unit.name, {}))
                    sources += tensors.values()
                    targets += copied[unit.name].values()
                    if not unit.live:  # copied at once, so that only one layer is gathered at a time
                        torch._foreach_copy_(targets, sources, non_blocking=True)
                        sources, targets = [], []
            if targets:
                torch._foreach_copy_(targets, sources, non_blocking=True)
        if copy is not None:
            copy.weights, copy.events = copied, [_event(device) for device in self._streams]
            self._taken += 1
        return copy

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """On the worker's thread: what is computed on an accelerator goes to streams beside training's."""
        with contextlib.ExitStack() as streams:
            for stream in self._streams.values():
                streams.enter_context(torch.cuda.stream(stream))
            try:
                yield
            finally:  # the memory of what was used may be written again
                for stream in self._streams.values():
                    stream.synchronize()

    @contextlib.contextmanager
    def arrived(self, copy: Copy) -> Iterator[dict[str, Tensors]]:
        """On the worker's thread: the weights by unit, once they are there. Afterwards there is room."""
        try:
            for event in copy.events:
                event.synchronize()
            with self.beside():
                yield {
                    name: {role: one.to(self.initial[name][role].device) for role, one in tensors.items()}
                    for name, tensors in copy.weights.items()
                }
        finally:
            self._spare.append(copy)
            self._done += 1

    def _room_for(self, unit: Unit, tensors: Tensors, memory: Tensors) -> Tensors:
        """Memory that copies can reach without being waited for, that of an earlier copy if it fits: where
        changes are measured, or first on the device."""
        source, target = self.devices[unit.name], next(iter(self.initial[unit.name].values())).device
        if source.type == "cuda" and self._passes_device and unit.live:
            target = source
        pinned = source.type == "cuda" and target.type == "cpu"
        room: Tensors = {}
        for role, tensor in tensors.items():
            old = memory.get(role, tensor[:0])
            fits = old.shape == tensor.shape and old.dtype == tensor.dtype
            room[role] = old if fits else torch.empty_like(tensor, device=target, pin_memory=pinned)
        return room


def as_given(name: str, number: Number) -> Callable[[], float | int]:
    """A number as it is now, to be asked for on another thread, which may wait for it."""
    if name in RESERVED:
        raise RankriseError(f"a metric cannot be called {name!r}: pass another name.")
    if isinstance(number, Tensor):
        if number.numel() != 1 or number.is_complex():
            raise RankriseError(
                f"{name} is a tensor of shape {list(number.shape)} and type {number.dtype}: pass a real "
                "number, such as its mean."
            )
        number = number.detach().reshape(())
        if number.device.type == "cuda":
            host = torch.empty_like(number, device="cpu", pin_memory=True).copy_(number, non_blocking=True)
            event = _event(number.device)

            def arrived() -> float | int:
                event.synchronize()
                return host.item()

            return arrived
        if number.device.type != "cpu":
            return number.clone().item
        number = number.item()
    try:
        plain = number if isinstance(number, int) else float(number)  # such as NumPy's
        float(plain)
    except (TypeError, ValueError, OverflowError):
        raise RankriseError(f"{name} is {number!r:.60}: pass a number or a tensor with one.") from None
    return lambda: plain


def _event(device: torch.device) -> torch.cuda.Event:
    """An event after what the calling thread's stream has been given so far."""
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event
