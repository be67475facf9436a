"""Where data lie that were brought into a quick form once."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """$XDG_CACHE_HOME/rankrise, or ~/.cache/rankrise."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "rankrise"
