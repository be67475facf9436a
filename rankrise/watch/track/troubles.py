"""What goes wrong inside a tracker: told once, counted, and never in the way of training unless asked."""

import logging
from collections import Counter

from rankrise.errors import RankriseError

log = logging.getLogger("rankrise")


class Troubles:
    """Failures by what was being done. With `strict`, `check` raises the first one instead."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self._first: Exception | None = None
        self.counts: Counter[str] = Counter()

    def note(self, doing: str, error: Exception, advice: str = "") -> None:
        """A failure: logged the first time that this was being done."""
        self.counts[doing] += 1
        if self.strict and self._first is None:  # otherwise it would keep alive what its frames hold
            self._first = error
        if self.counts[doing] == 1 and not self.strict:
            remedy = advice or _advice(error)
            log.error(
                "Tracking: %s failed (%s: %s). Training goes on; %s. Said once.",
                *(doing, type(error).__name__, error, remedy),
                exc_info=None if isinstance(error, (OSError, RankriseError)) else error,
            )

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

    def check(self) -> None:
        """With `strict`, raise the first failure, once."""
        if self.strict and self._first is not None:
            error, self._first = self._first, None
            raise error


def _advice(error: Exception) -> str:
    if isinstance(error, OSError):
        return "what was written stays readable, and tracking goes on as soon as the folder can be written"
    return "tracking goes on without what is missing"
