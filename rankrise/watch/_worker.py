"""A thread beside training that does jobs in order, and what goes wrong in them: logged once and counted."""

import logging
import queue
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from rankrise.foundations.device import allowed_cores
from rankrise.foundations.errors import RankriseError, first_line
from rankrise.watch._batches import use_threads

log = logging.getLogger("rankrise")


class Worker:
    """A thread that does jobs in order and leaves the cores to training; `attempt` catches their errors."""

    def __init__(self, on_accelerator: bool, attempt: Callable[[str, Callable[[], Any]], None]) -> None:
        # Beside an accelerator a quarter of the host's cores, at most four; one where training needs them.
        self._cores = max(1, min(4, allowed_cores() // 4)) if on_accelerator else 1
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
