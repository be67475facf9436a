"""What commands print on a terminal."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rankrise

if TYPE_CHECKING:
    from rich.console import Console


def safe_console(**options: Any) -> "Console":
    """rich's console, which ends as all printing does when its reader is gone, such as `head`."""
    from rich.console import Console

    class Safe(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return Safe(**options)


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Within it, a warning of this package is one sentence on the error stream, without a line of code."""
    (ours,) = rankrise.__path__
    as_before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *others: Any, **named: Any) -> None:
        if Path(filename).is_relative_to(ours):
            print(f"Warning: {message}", file=sys.stderr)
        else:
            as_before(message, category, filename, *others, **named)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = as_before
