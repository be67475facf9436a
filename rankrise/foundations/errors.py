"""The errors that rankrise raises on purpose."""


class RankriseError(ValueError):
    """Input that cannot be used: one sentence, which the command line prints before it exits with code 2."""


class NotRecorded(RankriseError):
    """A run does not hold this: nobody asked for it, or the run was cut off before it."""


def first_line(error: BaseException) -> str:
    """The first line of another library's error, or its type if it has no message."""
    return next(iter(str(error).splitlines()), type(error).__name__)


RankriseError.__module__ = "rankrise"  # tracebacks name it as users import it
