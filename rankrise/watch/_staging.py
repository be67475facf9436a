"""The way of the weights from the model to the worker: copied in the order of training, waited for by no one.

At a due step the weights are copied on the stream of training, which takes microseconds on the device and
makes them those of that step. The worker waits for an event and takes them from there, on a stream of its
own. Copies have their places from the start: when all are taken, the worker is behind and the step is left
out.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.watch._batches import without_autocast
from rankrise.watch._units import Tensors, Unit

# What all places together may take beside the first, and how many there are at most.
PLACES_BYTES = 2**28
PLACES = 32


@dataclass(eq=False)
class Place:
    """Room for the tracked weights of one step: `held` where they are measured, `passing` on an accelerator
    while they are on their way to the host."""

    held: dict[str, Tensors] = field(default_factory=dict)
    passing: dict[str, Tensors] = field(default_factory=dict)
    events: list[tuple[torch.device, torch.cuda.Event]] = field(default_factory=list)
    missing: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Reading:
    """The first look at the units: copies of their `weights` where they are measured, and the `forms` (sizes,
    strides and type, no values) and `devices` that they have in the model."""

    weights: dict[str, Tensors]
    forms: dict[str, Tensors]
    devices: dict[str, torch.device]


def first_reading(units: Sequence[Unit], keep: str) -> Reading:
    """Copy the weights of every unit, one after another: only one sharded layer is whole at a time."""
    reading = Reading({}, {}, {})
    for unit in units:
        tensors = unit.read()
        device = next(iter(tensors.values())).device
        target = measured_on(device, keep)
        reading.devices[unit.name] = device
        reading.forms[unit.name] = {role: torch.empty_like(t, device="meta") for role, t in tensors.items()}
        reading.weights[unit.name] = {
            role: torch.empty(t.shape, dtype=t.dtype, device=target).copy_(t) for role, t in tensors.items()
        }
    return reading


def measured_on(device: torch.device, keep: str) -> torch.device:
    """Where the initial weights are kept and changes are measured: float64 is needed there."""
    return device if keep == "model" and device.type in ("cpu", "cuda") else torch.device("cpu")


class Staging:
    """The places, and which of them are free."""

    def __init__(
        self,
        units: Sequence[Unit],
        reading: Reading,
        keep: str,
        on_error: Callable[[str, Exception], None],
    ) -> None:
        self._units, self._on_error = units, on_error
        self._devices = set(reading.devices.values())
        self._streams = {
            device: torch.cuda.Stream(device) for device in self._devices if device.type == "cuda"
        }
        size = sum(tensor.nbytes for tensors in reading.weights.values() for tensor in tensors.values())
        self.count = max(1, min(PLACES, PLACES_BYTES // size))
        self._free = deque(self._place(reading, keep, size <= PLACES_BYTES) for _ in range(self.count))
        for device in self._streams:
            # Two threads must not be the first to decompose a matrix there at once.
            torch.linalg.cholesky_ex(torch.ones(1, 1, device=device))
            torch.cuda.synchronize(device)  # the initial weights are there, for every stream

    @property
    def on_accelerator(self) -> bool:
        """Whether training leaves the host's cores alone."""
        return any(device.type != "cpu" for device in self._devices)

    @property
    def busy(self) -> int:
        """How many steps the worker has not finished."""
        return self.count - len(self._free)

    def take(self) -> Place | None:
        """The weights as they are now; None if no place is free. Sharded ones are gathered in either case,
        because the other processes take part."""
        place = self._free.popleft() if self._free else None
        try:
            with torch.no_grad(), contextlib.ExitStack() as stack:
                for kind in {device.type for device in self._devices}:
                    stack.enter_context(without_autocast(kind))
                self._fill(place)
        except BaseException:
            if place is not None:
                self._free.append(place)
            raise
        return place

    @contextlib.contextmanager
    def beside(self) -> Iterator[None]:
        """On the worker's thread: what is computed on an accelerator goes to streams beside training's."""
        with contextlib.ExitStack() as streams:
            for stream in self._streams.values():
                streams.enter_context(torch.cuda.stream(stream))
            yield

    @contextlib.contextmanager
    def arrived(self, place: Place) -> Iterator[dict[str, Tensors]]:
        """On the worker's thread: the weights by unit, once they are there. Afterwards the place is free."""
        try:
            with self.beside():
                for device, event in place.events:
                    self._streams[device].wait_event(event)
                for name, tensors in place.passing.items():
                    for role, tensor in tensors.items():
                        place.held[name][role].copy_(tensor, non_blocking=True)
                if any(tensor.device.type == "cpu" for t in place.held.values() for tensor in t.values()):
                    for device, _ in place.events:
                        self._streams[device].synchronize()
                yield {name: held for name, held in place.held.items() if name not in place.missing}
        finally:
            self._free.append(place)

    def _place(self, reading: Reading, keep: str, small: bool) -> Place:
        place = Place()
        for unit in self._units:
            forms, device = reading.forms[unit.name], reading.devices[unit.name]
            target = measured_on(device, keep)
            place.held[unit.name] = {role: _room(form, target, device) for role, form in forms.items()}
            if target != device and device.type == "cuda" and small and unit.live:
                place.passing[unit.name] = {role: _room(form, device, device) for role, form in forms.items()}
        return place

    def _fill(self, place: Place | None) -> None:
        sources: list[Tensor] = []
        targets: list[Tensor] = []
        if place is not None:
            place.missing, place.events = set(), []
        for unit in self._units:
            if place is None and not unit.sharded:
                continue
            try:
                tensors = unit.read()
                if place is not None:
                    into = place.passing.get(unit.name, place.held[unit.name])
                    _pair(tensors, into, sources, targets)
            except Exception as error:
                self._on_error(f"reading {unit.name}", error)
                if place is not None:
                    place.missing.add(unit.name)
                continue
            if not unit.live:  # copied at once, so that only one layer is gathered at a time
                _copy(sources, targets)
        if place is not None:
            _copy(sources, targets)
            for device in self._streams:
                event = torch.cuda.Event(blocking=True)
                event.record(torch.cuda.current_stream(device))
                place.events.append((device, event))


def _room(form: Tensor, device: torch.device, source: torch.device) -> Tensor:
    """Memory of that form, which copies from `source` can reach without being waited for."""
    pinned = device.type == "cpu" and source.type == "cuda"
    return torch.empty_strided(form.size(), form.stride(), dtype=form.dtype, device=device, pin_memory=pinned)


def _pair(tensors: Tensors, into: Tensors, sources: list[Tensor], targets: list[Tensor]) -> None:
    for role, tensor in tensors.items():
        target = into[role]
        if target.shape != tensor.shape:
            raise RankriseError(
                f"its {role} is now {list(tensor.shape)} and was {list(target.shape)}: the tracker follows "
                "the layers of the beginning."
            )
        if target.dtype != tensor.dtype:  # the model was converted meanwhile
            target = into[role] = torch.empty_like(target, dtype=tensor.dtype)
        sources.append(tensor)
        targets.append(target)


def _copy(sources: list[Tensor], targets: list[Tensor]) -> None:
    if sources:
        torch._foreach_copy_(targets, sources, non_blocking=True)
    sources.clear()
    targets.clear()
