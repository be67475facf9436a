"""Tables as CSV text."""

import csv
import io
from collections.abc import Iterable, Sequence

from rankrise.foundations.text import printable


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with the header on top. A name that a spreadsheet would compute is quoted with an apostrophe, and
    what is not seen is written out: behind a carriage return, a new row would begin.

    >>> print(csv_text(["run", "loss"], [["=cmd()", -1.5], ["-a", "-2"], ["a" + chr(13) + "=b", 0]]), end="")
    run,loss
    '=cmd(),-1.5
    '-a,-2
    a\\r=b,0
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows(map(_cell, row) for row in (header, *rows))
    return text.getvalue()


def _cell(value: object) -> object:
    if not isinstance(value, str):
        return value
    computed = value.startswith(("=", "+", "-", "@")) and not _is_number(value)
    return printable(f"'{value}" if computed else value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
