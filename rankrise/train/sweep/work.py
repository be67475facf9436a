"""What a worker does, wherever it is: one run, from plain data to plain data."""

import traceback
from collections.abc import Callable
from contextlib import chdir
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train._loop import Interrupted, train

TrainRun = Callable[[dict[str, Any], str], None]
"""Trains with some settings in a folder. Workers import it by its name, so it is a function of a module."""


def train_run(settings: dict[str, Any], folder: str) -> None:
    """Train, or resume, the run in `folder`."""
    train(TrainSettings(**settings), folder)


def outcome(work: TrainRun, settings: dict[str, Any], folder: str, here: str) -> dict[str, str]:
    """How a run ended: its "state", the "reason" in a sentence, and a "trace" where nobody foresaw it.

    Paths are those of the folder `here`, in which the sweep was started.
    """
    try:
        with chdir(here):
            work(settings, folder)
    except Interrupted as stopped:
        return {"state": "interrupted", "reason": str(stopped), "trace": ""}
    except RankriseError as error:
        return {"state": "failed", "reason": str(error), "trace": ""}
    except Exception as error:
        return failure(error)
    return {"state": "finished", "reason": "", "trace": ""}


def failure(error: BaseException) -> dict[str, str]:
    """The outcome of a run that ended by an error nobody foresaw."""
    first = next(iter(str(error).splitlines()), "")
    reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
    return {"state": "failed", "reason": reason, "trace": "".join(traceback.format_exception(error))}
