"""Pieces of a page: paragraphs, packed arrays, and curves with only the points that a line would miss."""

import base64
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

TOLERANCE = 3e-4
"""How far a drawn curve may be from the run's, as a share of the plot's height: below a tenth of a pixel."""


def packed(values: ArrayLike) -> dict[str, Any]:
    """An array as base64 of 32-bit floats; what is not finite becomes nan."""
    with np.errstate(over="ignore"):
        array = np.asarray(values, dtype=float).astype("<f4")
    array[~np.isfinite(array)] = np.nan
    return {"f32": base64.b64encode(array.tobytes()).decode(), "shape": array.shape}


def curve(
    times: np.ndarray, values: np.ndarray, height: float = 0.0, logarithmic: bool = False
) -> dict[str, Any]:
    """A curve as packed rows of times and values, thinned for a plot of some height (if 0, the curve's own),
    and for a logarithmic one too."""
    drawn = values / (height or float(np.ptp(values)) or 1.0)
    if logarithmic:
        logs = np.log10(np.maximum(values, 1e-300))
        drawn = np.stack([drawn, logs / max(float(np.ptp(logs)), 1.0)], axis=1)
    kept = kept_points(times, drawn, TOLERANCE)
    return packed([times[kept], values[kept]])


def kept_points(times: np.ndarray, values: np.ndarray, tolerance: float) -> np.ndarray:
    """The indices to keep so that lines between them stay within `tolerance` of `values`, (n,) or (n, c).

    Ramer's rule with vertical distances: keep the point farthest from the line, and look again on both sides.
    """
    columns = values.reshape(len(times), -1)
    keep = {0, len(times) - 1}
    pending = [(0, len(times) - 1)]
    while pending:
        first, last = pending.pop()
        if last - first < 2:
            continue
        inside = slice(first, last + 1)
        share = ((times[inside] - times[first]) / (times[last] - times[first]))[:, None]
        line = columns[first] + share * (columns[last] - columns[first])
        distance = np.abs(columns[inside] - line).max(axis=1)
        farthest = first + int(distance.argmax())
        if distance[farthest - first] > tolerance:
            keep.add(farthest)
            pending += [(first, farthest), (farthest, last)]
    return np.array(sorted(keep))


def paragraph(text: str, style: str = "") -> str:
    """A paragraph of HTML."""
    return f'<p class="{style}">{text}</p>' if style else f"<p>{text}</p>"


def many(count: int, thing: str) -> str:
    """A count with its noun: "6 000 steps"."""
    return f"{count} {thing}" if count == 1 else f"{count:,} {thing}s".replace(",", "\u202f")
