"""The error that rankrise raises on purpose, and the one kind of it that callers tell from others."""


class RankriseError(ValueError):
    """Input that cannot be used: one sentence that says what was passed, what was expected, and what to do.

    The command line prints the sentence and exits with code 2.
    """


class NotRecorded(RankriseError):
    """Something that a run does not hold: it was not asked for, or the run was cut off before it."""


RankriseError.__module__ = "rankrise"  # tracebacks name it as users import it
