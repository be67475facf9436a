"""Tables as CSV text."""

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with the header on top. A name that a spreadsheet would compute is quoted with an apostrophe.

    >>> print(csv_text(["run", "loss"], [["=cmd()", -1.5], ["-a", "-2"]]), end="")
    run,loss
    '=cmd(),-1.5
    '-a,-2
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(map(_cell, row) for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if (
        isinstance(value, str)
        and value.startswith(("=", "+", "-", "@", "\t", "\r"))
        and not _is_number(value)
    ):
        return f"'{value}"
    return value


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
