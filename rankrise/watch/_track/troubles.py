"""What goes wrong inside a tracker: told once a cause, counted, and in the way of training only if asked."""

import logging
import re
from collections import Counter

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.text import printable

log = logging.getLogger("rankrise")


class Troubles:
    """Failures by what was being done. With `strict`, `check` raises the first one instead."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self._first: Exception | None = None
        self._told: set[tuple[object, ...]] = set()
        self.lost = ""
        """Why something that was to be recorded is not, if so."""
        self.counts: Counter[str] = Counter()

    def note(self, doing: str, error: BaseException, advice: str = "") -> None:
        """A failure: logged the first time that this failed for this cause."""
        self.counts[doing] += 1
        if not isinstance(error, Exception):  # SystemExit, which must not end training when it is raised
            error = RuntimeError(repr(error))
        said = _said(error)
        if self.strict and self._first is None:  # otherwise it would keep alive what its frames hold
            self._first = error
        cause = (doing, *_cause(error, said))
        if cause not in self._told and not self.strict:
            self._told.add(cause)
            remedy = advice or _advice(error)
            log.error(
                "Tracking: %s failed (%s: %s). Training goes on; %s. Said once for this cause.",
                *(doing, type(error).__name__, printable(said), remedy),
                exc_info=None if isinstance(error, (OSError, RankriseError)) else error,
            )

    def lose(self, doing: str, error: BaseException, advice: str = "") -> None:
        """A failure on the way to the record, in which something is missing now."""
        self.lost = self.lost or f"{doing} failed ({_first_line(error)})"
        self.note(doing, error, advice)

    def tell(self, sentence: str, missing: bool) -> None:
        """Another program meddled with the record, and something of it may be `missing`, or not ours."""
        if missing:
            self.lost = self.lost or sentence
        log.warning("Tracking: %s. Training goes on.", sentence)

    def skip(self, what: str) -> None:
        """Something was left out because measuring takes longer than the training between: logged once."""
        self.counts[what] += 1
        if self.counts[what] == 1:
            log.warning(
                "Tracking falls behind: measuring takes longer than the training between measured steps, so "
                "%s are left out from time to time; pass a Schedule with fewer steps to choose which. Said "
                "once; run.json counts them.",
                what,
            )

    def repeat(self, step: int) -> None:
        """A step was given a second loss: logged once."""
        self.counts["losses given again"] += 1
        if self.counts["losses given again"] == 1:
            log.warning(
                "Tracking: step %d was given a second loss, which counts instead of the first; pass step a "
                "number that goes up with every optimizer step. Said once.",
                step,
            )

    def refuse(self, error: RankriseError) -> None:
        """What must not go on, `strict` or not: `check` raises it."""
        self._first = error

    def check(self) -> None:
        """Raise what was refused or, with `strict`, the first failure; once."""
        if self._first is not None:
            error, self._first = self._first, None
            raise error


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "which cannot be printed"


def _first_line(error: BaseException) -> str:
    """What an error says in its first line, without the full stop; its kind where it says nothing.

    >>> _first_line(RuntimeError("did not converge.\\nMore")), _first_line(MemoryError())
    ('did not converge', 'MemoryError')
    """
    return next(iter(_said(error).splitlines()), "").rstrip(".") or type(error).__name__


def _cause(error: Exception, said: str) -> tuple[object, ...]:
    """The kind of a failure: messages that differ in numbers, or in the file that was written, are the same.

    >>> _cause(RuntimeError(), "step 7 failed") == _cause(RuntimeError(), "step 8 failed")
    True
    """
    if isinstance(error, OSError) and error.errno is not None:
        return type(error), error.errno
    return type(error), re.sub(r"0x[0-9a-f]+|\d+", "#", said)


def _advice(error: Exception) -> str:
    if isinstance(error, OSError):
        return "what was written stays readable, and tracking goes on as soon as the folder can be written"
    return "tracking goes on without what is missing"
