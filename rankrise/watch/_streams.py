"""A run's numbers as they come, in TensorBoard, Weights & Biases or trackio: means over heads, and the loss.

A stream opens when its first number is written, on the process that writes.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from rankrise.foundations.optional import require


class Stream(Protocol):
    """Something that takes the numbers of a step, by name."""

    def write(self, step: int, numbers: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Streams:
    """All streams of a run. `on_error` gets what one of them raised, which then gets no more numbers."""

    def __init__(self, streams: Iterable[Stream], on_error: Callable[..., None]) -> None:
        self._streams, self._on_error = list(streams), on_error

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        """Pass the finite numbers to every stream."""
        if finite := {name: number for name, number in numbers.items() if math.isfinite(number)}:
            self._each(lambda stream: stream.write(step, finite))

    def close(self) -> None:
        self._each(lambda stream: stream.close())

    def _each(self, call: Callable[[Stream], None]) -> None:
        for stream in list(self._streams):
            try:
                call(stream)
            except (Exception, SystemExit) as error:  # some libraries end the process if they cannot log in
                self._streams.remove(stream)
                name = type(stream).__name__
                self._on_error(f"writing to {name}", error, f"{name} gets no more numbers")


class TensorBoard:
    """A stream to event files in a folder. A resumed run hides what it had written of repeated steps."""

    def __init__(self, folder: str | Path) -> None:
        require("tensorboard", extra="tensorboard", purpose="Streaming to TensorBoard")
        self.folder = Path(folder)
        self._writer: Any = None

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self.folder), purge_step=step)
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class Trackio:
    """A stream to trackio; settings are those of `trackio.init`, such as project, name and resume."""

    library = "trackio"
    _joined = False  # whether the run is another's, and goes on

    def __init__(self, **settings: Any) -> None:
        self._module = require(self.library, extra=self.library, purpose=f"Streaming to {self.library}")
        self._settings = settings
        self._run: Any = None

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._run is None:
            self._run = self._module.init(**self._settings)
        self._run.log(dict(numbers), step=step)

    def close(self) -> None:
        if self._run is not None and not self._joined:
            self._run.finish()


class WeightsAndBiases(Trackio):
    """A stream to the W&B run of this process, or a new one; settings are those of `wandb.init`.

    Numbers come under "rankrise/" with their own step, because W&B's counter only goes forward and other code
    may be moving it.
    """

    library = "wandb"

    def write(self, step: int, numbers: Mapping[str, float]) -> None:
        if self._run is None:
            self._joined = self._module.run is not None
            self._run = self._module.run if self._joined else self._module.init(**self._settings)
            self._run.define_metric("rankrise/*", step_metric="rankrise/step")
        named = {f"rankrise/{name}": number for name, number in numbers.items()}
        self._run.log({"rankrise/step": step, **named})
