"""Tables as CSV text."""

import csv
import io
from collections.abc import Iterable, Sequence


def csv_text(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """CSV with the header on top.

    >>> print(csv_text(["run", "loss"], [["a, b", -1.5]]), end="")
    run,loss
    "a, b",-1.5
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows((header, *rows))
    return text.getvalue()
