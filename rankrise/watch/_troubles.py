"""What goes wrong inside a tracker. Training goes on: each cause is logged once and counted."""

import logging
import re
from collections import Counter

from rankrise.foundations.errors import RankriseError, first_line

log = logging.getLogger("rankrise")


class Troubles:
    """Failures by what was being done. With `strict`, `check` raises the first one instead."""

    def __init__(self, strict: bool) -> None:
        self.strict = strict
        self.lost = ""
        """Why something is missing from the record; empty while nothing is."""
        self.counts: Counter[str] = Counter()
        self.refused: Exception | None = None
        """What the next `check` raises."""
        self._logged: set[object] = set()

    def lose(self, doing: str, error: BaseException, remedy: str = "") -> None:
        """A failure by which something is missing from the record now."""
        self.lost = self.lost or f"{doing} failed ({first_line(error).rstrip('.')})"
        self.note(doing, error, remedy)

    def note(self, doing: str, error: BaseException, remedy: str = "") -> None:
        """A failure that loses nothing of the record."""
        self.counts[doing] += 1
        if not isinstance(error, Exception):  # SystemExit must not end training when it is raised
            error = RuntimeError(repr(error))
        if self.strict:
            self.refused = self.refused or error
            return
        text = re.sub(r"0x[0-9a-f]+|\d+", "#", str(error))
        cause = (doing, type(error), getattr(error, "errno", None) or text)
        if cause in self._logged:
            return
        self._logged.add(cause)
        goes_on = "as soon as the folder can be written" if isinstance(error, OSError) else "without it"
        log.error(
            "Tracking: %s failed (%s: %s). Training goes on; %s. Logged once for this cause.",
            *(doing, type(error).__name__, error, remedy or f"tracking goes on {goes_on}"),
            exc_info=None if isinstance(error, (OSError, RankriseError)) else error,
        )

    def once(self, what: str, sentence: str) -> None:
        """Count something, and warn the first time."""
        self.counts[what] += 1
        if self.counts[what] == 1:
            log.warning("Tracking: %s Logged once; run.json counts it.", sentence)

    def check(self) -> None:
        """Raise what was refused or, with `strict`, the first failure; once."""
        if self.refused is not None:
            error, self.refused = self.refused, None
            raise error
