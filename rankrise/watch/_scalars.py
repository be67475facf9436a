"""Loss and metrics of a step, taken without waiting for the device that computes them."""

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.record.lines import RESERVED

Number = float | int | Tensor
# Numbers on their way from the device. More than that wait on the device itself.
ROOM = 4096


@dataclass(frozen=True)
class _Coming:
    """A number that will be at `place` of the pinned memory once `event` has happened."""

    place: int
    event: torch.cuda.Event


Taken = float | int | Tensor | _Coming
"""A number as it was when it was given, for `Scalars.resolve`."""


class Scalars:
    """Copies of numbers that are still being computed, in pinned memory that is used again and again."""

    def __init__(self) -> None:
        self._room: Tensor | None = None
        self._free: deque[int] = deque(range(ROOM))

    def take(self, name: str, number: Number) -> Taken:
        """The number as it is now; `resolve` it later, on another thread."""
        if name in RESERVED:
            raise RankriseError(f"a metric cannot be called {name!r}: pass another name.")
        if isinstance(number, Tensor):
            if number.numel() != 1 or number.is_complex():
                raise RankriseError(
                    f"{name} is a tensor of shape {list(number.shape)} and type {number.dtype}: pass a real "
                    "number, such as its mean."
                )
            number = number.detach().reshape(())
            if number.device.type != "cuda":
                return number.item() if number.device.type == "cpu" else number.clone()
            return self._copied(number)
        if isinstance(number, float):
            return number
        try:
            as_float = float(number)  # such as NumPy's
        except (TypeError, ValueError, OverflowError):
            raise RankriseError(f"{name} is {number!r:.60}: pass a number or a tensor with one.") from None
        return number if isinstance(number, int) else as_float

    def resolve(self, number: Taken) -> float | int:
        """The number, once it is there."""
        if isinstance(number, Tensor):
            return number.item()
        if not isinstance(number, _Coming):
            return number
        assert self._room is not None
        number.event.synchronize()
        value = self._room[number.place].item()
        self._free.append(number.place)
        return value

    def _copied(self, number: Tensor) -> Tensor | _Coming:
        if self._room is None:
            self._room = torch.empty(ROOM, dtype=torch.float64, device="cpu", pin_memory=True)
        try:
            place = self._free.popleft()
        except IndexError:
            return number.clone()
        self._room[place].copy_(number, non_blocking=True)
        event = torch.cuda.Event(blocking=True)
        event.record(torch.cuda.current_stream(number.device))
        return _Coming(place, event)
