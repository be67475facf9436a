"""The error that rankrise raises on purpose, and the one kind of it that callers tell from others."""

from rankrise.foundations.text import shortened


class RankriseError(ValueError):
    """Input that cannot be used: one sentence that says what was passed, what was expected, and what to do.

    The command line prints the sentence and exits with code 2. What was passed may have any length, and is
    shortened.
    """

    def __init__(self, sentence: str) -> None:
        super().__init__(shortened(sentence))


class NotRecorded(RankriseError):
    """Something that a run does not hold: it was not asked for, or the run was cut off before it."""


def first_line(error: BaseException) -> str:
    """The first line of what an error of another library says, or its kind where it says nothing.

    >>> first_line(RuntimeError("did not converge\\nin 10 steps")), first_line(MemoryError())
    ('did not converge', 'MemoryError')
    """
    return next(iter(str(error).splitlines()), type(error).__name__)


RankriseError.__module__ = "rankrise"  # tracebacks name it as users import it
