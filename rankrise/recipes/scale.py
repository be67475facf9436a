"""An initialisation scale by its name: "1e-32", or "1e-1000", which no float can hold."""

import math
import re
from decimal import Decimal, InvalidOperation

from rankrise.foundations.errors import RankriseError


def scale_name(alpha: str | float) -> str:
    """The one way to write a scale between 0 and 1, used in file names and tables.

    >>> scale_name("0.01"), scale_name(1e-32), scale_name("2.5E-1000")
    ('1e-2', '1e-32', '2.5e-1000')
    """
    try:
        number = Decimal(str(alpha).strip())
    except InvalidOperation:
        number = Decimal(0)
    if not 0 < number < 1:
        raise RankriseError(
            f"alpha is {alpha!r}: pass an initialisation scale between 0 and 1, such as 1e-32."
        )
    return re.sub(r"\.?0*e", "e", f"{number:e}")


def log10_of(name: str) -> float:
    """The logarithm to base 10 of a scale given by its name.

    >>> log10_of("1e-1000")
    -1000.0
    """
    mantissa, exponent = name.split("e")
    return math.log10(float(mantissa)) + int(exponent)
