"""Thinned curves stay within the tolerance of what they were made from."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rankrise.show.report.thin import TOLERANCE, kept_points, thinned

curves = arrays(np.float64, st.integers(2, 60), elements=st.floats(-10, 10, width=32))


@given(curves, st.floats(1e-3, 1.0))
def test_straight_lines_between_kept_points_stay_within_the_tolerance(
    values: np.ndarray, tolerance: float
) -> None:
    times = np.arange(len(values), dtype=float) ** 1.5
    kept = kept_points(times, values, tolerance)
    assert np.abs(np.interp(times, times[kept], values[kept]) - values).max() <= tolerance + 1e-12
    assert kept[0] == 0
    assert kept[-1] == len(values) - 1


@given(curves)
def test_the_page_s_form_of_a_curve_is_within_a_pixel(values: np.ndarray) -> None:
    times = np.linspace(0, 3, len(values))
    height = float(np.ptp(values)) or 1.0
    flat = thinned(times, values, height)
    drawn = np.interp(times, times[flat[::2]], flat[1::2])
    assert np.abs(drawn - values).max() <= (TOLERANCE + 1e-5) * height


def test_a_staircase_keeps_its_corners_only() -> None:
    values = np.repeat([0.0, 1.0, 1.5], 100)
    assert kept_points(np.arange(300.0), values, 0.01).tolist() == [0, 99, 100, 199, 200, 299]


def test_on_a_log_scale_small_losses_count_too() -> None:
    times = np.linspace(0, 1, 400)
    losses = 10.0 ** (-6 * times**2)
    flat = thinned(times, losses, 1.0, logarithmic=True)
    drawn = np.interp(times, times[flat[::2]], np.log10(flat[1::2]))
    assert np.abs(drawn - np.log10(losses)).max() == pytest.approx(0, abs=6 * 1.01 * TOLERANCE)
