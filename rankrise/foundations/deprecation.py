"""Names that moved: the old spelling works for one version, and warns."""

import importlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any


def moved(module: str, addresses: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose old names now live at other addresses.

    An address is "module:name". Write it below the module's imports, out of sight of type checkers, to which
    every misspelt name would otherwise exist:

        if not TYPE_CHECKING:
            __getattr__ = moved(__name__, {"Place": "rankrise.predict.types:AttentionEntry"})

    >>> import warnings
    >>> lookup = moved("fractions", {"greatest_divisor": "math:gcd"})
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     lookup("greatest_divisor")(12, 18), str(caught[0].message)
    (6, 'fractions.greatest_divisor is now math.gcd: the old name goes with the next version.')
    >>> lookup("nothing")
    Traceback (most recent call last):
    AttributeError: module 'fractions' has no attribute 'nothing'
    """

    def lookup(name: str) -> Any:
        if name not in addresses:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, new = addresses[name].partition(":")
        message = f"{module}.{name} is now {place}.{new}: the old name goes with the next version."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        return getattr(importlib.import_module(place), new)

    return lookup
