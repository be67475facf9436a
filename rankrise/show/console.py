"""What commands print, where names in it could steer the terminal: of models, layers, metrics and folders."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rankrise
from rankrise.foundations.text import printable, shortened

if TYPE_CHECKING:
    from rich.console import Console

KEPT = "\n\t"


def safe_console(**options: Any) -> "Console":
    """rich's console, which shows characters that would steer a terminal instead of sending them."""
    from rich.console import Console
    from rich.segment import Segment

    class Safe(Console):
        def _render_buffer(self, buffer: Any) -> str:
            segments = (
                one if one.control else Segment(printable(one.text, KEPT), one.style) for one in buffer
            )
            return super()._render_buffer(segments)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # the command line ends as it does for all that is printed

    return Safe(**options)


@contextlib.contextmanager
def safe_output() -> Iterator[None]:
    """Within it, what is printed to standard output is safe; rich's consoles write past it."""
    with contextlib.redirect_stdout(_SafeStream(sys.stdout)):
        yield


@contextlib.contextmanager
def plain_warnings() -> Iterator[None]:
    """Within it, a warning of this package is one sentence on the error stream, without a line of code."""
    (ours,) = rankrise.__path__
    as_before = warnings.showwarning

    def show(message: Any, category: Any, filename: str, *others: Any, **named: Any) -> None:
        if Path(filename).is_relative_to(ours):
            print(f"Warning: {shortened(printable(str(message), KEPT))}", file=sys.stderr)
        else:
            as_before(message, category, filename, *others, **named)

    warnings.showwarning = show
    try:
        yield
    finally:
        warnings.showwarning = as_before


class _SafeStream:
    """A stream of text whose other ways are those of the stream behind it."""

    def __init__(self, stream: Any) -> None:
        self.rich_proxied_file = stream  # by this name rich finds the stream behind another

    def write(self, text: str) -> int:
        """Write a text that steers nothing."""
        self.rich_proxied_file.write(printable(text, KEPT))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)
