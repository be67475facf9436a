"""A history whose process is killed at a moment that no clock decides."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

from rankrise import watch


def killed_at(touch: int, series: Path, folder: Path) -> None:
    """Measure a series until the record in `folder` is touched for that time: when a file or folder of it is
    about to be opened, made, renamed or removed. Nothing of the process can tidy up after that."""
    touches = 0

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal touches
        if event in ("open", "os.mkdir", "os.rename", "os.remove") and str(arguments[0]).startswith(
            str(folder)
        ):
            touches += 1
            if touches == touch:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    watch.history(series, folder)
