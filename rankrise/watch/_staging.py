"""Weights and losses on their way from training to the worker: copied in order, never waited for.

At a due step the weights are copied on the stream of training, which takes microseconds on the device and
makes them those of that step. The worker waits for an event and measures the copies on a stream of its own.
All memory for copies is taken at the start. While none is free the worker is behind, and the step is left
out.
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
# Numbers on their way from a GPU to pinned memory. More than that wait on the GPU itself.
NUMBERS = 4096

Number = float | int | Tensor
Coming = float | int | Callable[[], float | int]


@dataclass(eq=False)
class Copy:
    """Memory by unit and role: the weights of the units in `read`, once the `events` have happened."""

    memory: dict[str, Tensors]
    read: list[str] = field(default_factory=list)
    events: list[torch.cuda.Event] = field(default_factory=list)


class Staging:
    """Copies of the weights, a few at a time. `initial` are the weights at the beginning, where changes are
    measured: on the model's device, or on the CPU if that is asked for or the device lacks float64."""

    def __init__(self, units: Sequence[Unit], keep: str, on_error: Callable[[str, Exception], None]) -> None:
        self._units, self._on_error = units, on_error
        self.initial: dict[str, Tensors] = {}
        self.devices: dict[str, torch.device] = {}
        """Where the weights of each unit are in the model."""
        forms: dict[str, Tensors] = {}
        for unit in units:  # one after another: only one sharded layer is whole at a time
            tensors = unit.read()
            device = self.devices[unit.name] = next(iter(tensors.values())).device
            target = device if keep == "model" and device.type in ("cpu", "cuda") else "cpu"
            forms[unit.name] = {role: torch.empty_like(one, device="meta") for role, one in tensors.items()}
            self.initial[unit.name] = {
                role: torch.empty(one.shape, dtype=one.dtype, device=target).copy_(one)
                for role, one in tensors.items()
            }
        size = sum(one.nbytes for tensors in self.initial.values() for one in tensors.values())
        self.most = max(1, min(COPIES, COPIES_BYTES // size))
        self._passes_device = size <= COPIES_BYTES  # else copied to the host at once
        self._free: deque[Copy] = deque()
        for _ in range(self.most):
            self._free.append(Copy({unit.name: self._memory(unit, forms[unit.name], {}) for unit in units}))
        on_gpus = {device for device in self.devices.values() if device.type == "cuda"}
        self._streams = {device: torch.cuda.Stream(device) for device in on_gpus}
        for device in on_gpus:
            # Two threads must not be the first to decompose a matrix there at once.
            torch.linalg.cholesky_ex(torch.ones(1, 1, device=device))
            torch.cuda.synchronize(device)  # the initial weights are there, for every stream
        count = NUMBERS if on_gpus else 0
        self._numbers = torch.empty(count, dtype=torch.float64, pin_memory=count > 0)
        self._free_numbers = deque(range(count))

    @property
    def on_accelerator(self) -> bool:
        """Whether training leaves the host's cores alone."""
        return any(device.type != "cpu" for device in self.devices.values())

    @property
    def busy(self) -> int:
        """How many copies the worker has not finished."""
        return self.most - len(self._free)

    def take(self) -> Copy | None:
        """Copy the weights as they are now; None if the worker is behind. Sharded ones are gathered in either
        case, because the other processes take part."""
        copy = self._free.popleft() if self._free else None
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        read: list[str] = []
        try:
            with torch.no_grad(), contextlib.ExitStack() as stack:
                for kind in {device.type for device in self.devices.values()}:
                    stack.enter_context(without_autocast(kind))
                for unit in self._units:
                    if copy is None and not unit.sharded:
                        continue
                    try:
                        tensors = unit.read()
                    except Exception as error:
                        self._on_error(f"reading {unit.name}", error)
                        continue
                    if copy is None:
                        continue
                    memory = copy.memory[unit.name] = self._memory(unit, tensors, copy.memory[unit.name])
                    sources += tensors.values()
                    targets += (memory[role] for role in tensors)
                    read.append(unit.name)
                    if not unit.live:  # copied at once, so that only one layer is gathered at a time
                        torch._foreach_copy_(targets, sources, non_blocking=True)
                        sources, targets = [], []
                if targets:
                    torch._foreach_copy_(targets, sources, non_blocking=True)
                if copy is not None:
                    copy.read, copy.events = read, [_event(device) for device in self._streams]
        except BaseException:
            if copy is not None:
                self._free.append(copy)
            raise
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
        """On the worker's thread: the weights by unit, once they are there. Afterwards the copy is free."""
        try:
            for event in copy.events:
                event.synchronize()
            with self.beside():
                yield {
                    name: {role: one.to(self.initial[name][role].device) for role, one in tensors.items()}
                    for name, tensors in copy.memory.items()
                    if name in copy.read
                }
        finally:
            self._free.append(copy)

    def number(self, name: str, number: Number) -> Coming:
        """A number as it is now, or a function that waits for it, to be called on the worker's thread."""
        if name in RESERVED:
            raise RankriseError(f"a metric cannot be called {name!r}: pass another name.")
        if isinstance(number, float):
            return number
        if isinstance(number, Tensor):
            if number.numel() != 1 or number.is_complex():
                raise RankriseError(
                    f"{name} is a tensor of shape {list(number.shape)} and type {number.dtype}: pass a real "
                    "number, such as its mean."
                )
            number = number.detach().reshape(())
            if number.device.type == "cuda":
                place = self._free_numbers.popleft() if self._free_numbers else None
                if place is None:
                    held = number.clone()
                else:
                    held = self._numbers[place].copy_(number, non_blocking=True)
                event = _event(number.device)

                def arrived() -> float | int:
                    event.synchronize()
                    value = held.item()
                    if place is not None:
                        self._free_numbers.append(place)
                    return value

                return arrived
            if number.device.type != "cpu":
                return number.clone().item
            number = number.item()
        try:
            plain = number if isinstance(number, int) else float(number)  # such as NumPy's
            float(plain)
        except (TypeError, ValueError, OverflowError):
            raise RankriseError(f"{name} is {number!r:.60}: pass a number or a tensor with one.") from None
        return plain

    def _memory(self, unit: Unit, tensors: Tensors, memory: Tensors) -> Tensors:
        """Memory that copies can reach without being waited for: where changes are measured, or first on the
        device. `memory` itself unless the weights have another shape or type now."""
        source, target = self.devices[unit.name], next(iter(self.initial[unit.name].values())).device
        if source.type == "cuda" and self._passes_device and unit.live:
            target = source
        pinned = source.type == "cuda" and target.type == "cpu"
        room: Tensors = {}
        for role, tensor in tensors.items():
            old = memory.get(role)
            if old is None or old.shape != tensor.shape or old.dtype != tensor.dtype:
                old = torch.empty_like(tensor, device=target, pin_memory=pinned)
            room[role] = old
        return room


def _event(device: torch.device) -> torch.cuda.Event:
    """An event after what the calling thread's stream has been given so far."""
    event = torch.cuda.Event(blocking=True)
    event.record(torch.cuda.current_stream(device))
    return event
