"""A thread beside training that runs jobs in order and leaves the cores to training."""

import queue
import threading
from collections.abc import Callable
from typing import Any

import torch

from rankrise.foundations.device import allowed_cores
from rankrise.watch._batches import use_threads


class Worker:
    """Runs jobs one after another. `on_error` gets what a job was doing, and what it raised."""

    def __init__(self, on_accelerator: bool, on_error: Callable[[str, BaseException], None]) -> None:
        # Beside an accelerator a quarter of the host's cores, at most four; one where training needs them.
        self._cores = max(1, min(4, allowed_cores() // 4)) if on_accelerator else 1
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], Any]] | None] = queue.SimpleQueue()
        self._on_error = on_error
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
        """Until every job is done; there can be no more."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        use_threads(self._cores)
        with torch.no_grad():
            while (job := self._jobs.get()) is not None:
                doing, function = job
                try:
                    function()
                except BaseException as error:  # SystemExit too: the thread must not end on its own
                    self._on_error(doing, error)
