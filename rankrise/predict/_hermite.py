"""The cubic between two moments of a flow, through its values and its rates at both."""

from typing import Any


def hermite(part: Any, step: Any, ends: tuple[Any, Any], rates: tuple[Any, Any]) -> Any:
    """The cubic at a `part` of a step, from 0 to 1; all four may be tensors.

    >>> [hermite(part, 2.0, (1.0, 5.0), (2.0, 2.0)) for part in (0.0, 0.5, 1.0)]
    [1.0, 3.0, 5.0]
    """
    rest = 1 - part
    return rest * rest * ((1 + 2 * part) * ends[0] + part * step * rates[0]) + part * part * (
        (1 + 2 * rest) * ends[1] - rest * step * rates[1]
    )
