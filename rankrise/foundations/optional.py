"""Libraries that are imported only when used."""

import importlib
from types import ModuleType

from rankrise.foundations.errors import RankriseError


def require(module: str, extra: str, purpose: str) -> ModuleType:
    """Import an optional library, or say which extra installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RankriseError(
            f"{purpose} needs {module}, which cannot be imported ({error}): install it with: "
            f"pip install 'rankrise[{extra}]', or in a clone: pip install '.[{extra}]'."
        ) from error
