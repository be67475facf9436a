"""Thinned curves stay within the tolerance of what they were made from; packed arrays come back."""

import base64
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankrise.show.report.pieces import TOLERANCE, curve, kept_points


def unpacked(carried: dict[str, Any]) -> np.ndarray:
    """An array as the page carries it."""
    return np.frombuffer(base64.b64decode(carried["f32"]), "<f4").reshape(carried["shape"])


@given(arrays(np.float64, st.integers(2, 60), elements=st.floats(-10, 10, width=32)), st.floats(1e-3, 1.0))
def test_lines_between_kept_points_stay_within_the_tolerance(values: np.ndarray, tolerance: float) -> None:
    times = np.arange(len(values), dtype=float) ** 1.5
    kept = kept_points(times, values, tolerance)
    assert np.abs(np.interp(times, times[kept], values[kept]) - values).max() <= tolerance + 1e-12


def test_a_curve_is_drawn_within_a_pixel_on_a_linear_and_on_a_log_axis() -> None:
    times = np.linspace(0, 1, 400)
    losses = 10.0 ** (-6 * times**2)
    drawn_times, drawn = unpacked(curve(times, losses, logarithmic=True))
    assert len(drawn_times) < 100
    assert np.interp(times, drawn_times, drawn) == pytest.approx(losses, abs=1.01 * TOLERANCE)
    logs = np.interp(times, drawn_times, np.log10(drawn))
    assert logs == pytest.approx(np.log10(losses), abs=6 * 1.01 * TOLERANCE)
