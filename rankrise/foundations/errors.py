"""The one error that rankrise raises on purpose."""


class RankriseError(ValueError):
    """Input that cannot be used: one sentence that says what was passed, what was expected, and what to do.

    The command line prints the sentence and exits with code 2.
    """


RankriseError.__module__ = "rankrise"  # tracebacks name it as users import it
