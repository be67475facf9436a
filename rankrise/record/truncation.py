"""truncation.json: loss and gain against rank, as `rankrise truncate` measured them."""

from pathlib import Path
from typing import Any

from rankrise.foundations.files import read_json
from rankrise.record.names import TRUNCATION

AGAIN = "delete it, and measure again with 'rankrise truncate'"


def read_truncation(folder: Path) -> dict[str, Any] | None:
    """The curves of a run; None where nothing was measured."""
    path = folder / TRUNCATION
    return read_json(path, AGAIN) if path.exists() else None
