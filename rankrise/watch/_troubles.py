"""What goes wrong inside a tracker. Training goes on: each cause is logged once and counted."""

import logging
import re
from collections import Counter

from rankrise.foundations.errors import RankriseError

log = logging.getLogger("rankrise")


class Troubles:
    """Failures by what was being done. With `strict`, `check` raises the first one instead."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.lost = ""
        """Why something is missing from the record; empty while nothing is."""
        self.counts: Counter[str] = Counter()
        self._first: Exception | None = None
        self._logged: set[object] = set()

    def note(self, doing: str, error: BaseException, remedy: str = "") -> None:
        """A failure that loses nothing of the record."""
        self.counts[doing] += 1
        if not isinstance(error, Exception):  # SystemExit must not end training when it is raised
            error = RuntimeError(repr(error))
        if self.strict:
            self._first = self._first or error
            return
        said = str(error)
        cause = (doing, type(error), getattr(error, "errno", None) or re.sub(r"0x[0-9a-f]+|\d+", "#", said))
        if cause in self._logged:
            return
        self._logged.add(cause)
        if not remedy and isinstance(error, OSError):
            remedy = "tracking goes on as soon as the folder can be written"
        log.error(
            "Tracking: %s failed (%s: %s). Training goes on; %s. Said once for this cause.",
            *(doing, type(error).__name__, said, remedy or "tracking goes on without what is missing"),
            exc_info=None if isinstance(error, (OSError, RankriseError)) else error,
        )

    def lose(self, doing: str, error: BaseException, remedy: str = "") -> None:
        """A failure by which something is missing from the record now."""
        first = next(iter(str(error).splitlines()), "").rstrip(".") or type(error).__name__
        self.lost = self.lost or f"{doing} failed ({first})"
        self.note(doing, error, remedy)

    def skip(self, what: str) -> None:
        """Something was left out because measuring takes longer than the training between."""
        self.once(
            what,
            "Tracking falls behind: measuring takes longer than the training between measured steps, so "
            f"{what} are left out from time to time; pass a Schedule with fewer steps to choose which. Said "
            "once; run.json counts them.",
        )

    def once(self, what: str, sentence: str) -> None:
        """Count something, and warn the first time."""
        self.counts[what] += 1
        if self.counts[what] == 1:
            log.warning("%s", sentence)

    def refuse(self, error: RankriseError) -> None:
        """A mistake that must end training, `strict` or not: `check` raises it."""
        self._first = error

    def check(self) -> None:
        """Raise what was refused or, with `strict`, the first failure; once."""
        if self._first is not None:
            error, self._first = self._first, None
            raise error
