"""Runs that take no time, for sweeps whose workers import them by name."""

import os
import signal
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.record.folder import write_run


def quick(settings: dict[str, Any], folder: str) -> None:
    """Finish at once."""
    note_call(settings, folder)
    record(settings, folder, finished="now")


def fails_until_mended(settings: dict[str, Any], folder: str) -> None:
    """Seed 1 is refused and seed 2 breaks, as long as there is no file `mended` beside the runs."""
    if not (Path(folder).parent / "mended").exists():
        if settings["seed"] == 1:
            raise RankriseError("the loss is nan at step 3: lower learning_rate")
        if settings["seed"] == 2:
            raise ZeroDivisionError("division by zero\nand more")
    quick(settings, folder)


def crashes_at_seed_2(settings: dict[str, Any], folder: str) -> None:
    """The process of seed 1 is killed, and that of seed 2 crashes, as in a library's own code."""
    if settings["seed"] == 2:
        note_call(settings, folder)
        os.kill(os.getpid(), signal.SIGSEGV)
    if settings["seed"] == 1:
        note_call(settings, folder)
        os.kill(os.getpid(), signal.SIGKILL)
    quick(settings, folder)


def note_call(settings: dict[str, Any], folder: str) -> None:
    """Begin a run, and note that it was called and with which GPU."""
    record(settings, folder, finished=None)
    with (Path(folder) / "calls").open("a") as calls:
        calls.write(os.environ.get("CUDA_VISIBLE_DEVICES", "") + "\n")


def record(settings: dict[str, Any], folder: str, finished: str | None) -> None:
    """What a sweep looks at in a run's folder."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    empty = {"model": "none", "settings": {"products": [], "top": 1}, "layers": [], "matrices": []}
    told = {"extra": {"recipe": settings, "total_steps": 10}, "finished": finished}
    write_run(Path(folder), "tracked", empty | told)
