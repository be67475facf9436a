"""Clocks against a curve whose rank correlation with log(step) has a closed form."""

import numpy as np
import pytest

from rankrise.claims.clocks import Clock, interpolated, linear, logarithmic
from rankrise.claims.statistics import spearman

LAST = 10_000


def tent(share: np.ndarray, peak: float) -> np.ndarray:
    """Over log(step), from 0 at the first step to 1 at the last: up to the peak, and down as steeply."""
    return np.minimum(share, 2 * peak - share)


def on_a_logarithmic_clock(peak: float) -> float:
    """Its correlation, for peaks from 1/2 on: 12 times the integral of share times rank, less 3."""
    return 4 * (2 * peak - 1) ** 3 + 24 * peak**2 * (1 - peak) - 3


def measured(peak: float, shares: np.ndarray, clock: Clock) -> float:
    shares = np.unique([0, peak, 1, *shares])
    values = clock(LAST**shares, tent(shares, peak)[:, None, None])[:, 0, 0]
    return spearman(np.arange(len(values)), values)


@pytest.mark.parametrize("peak", [0.53, 0.61, 0.77, 0.94])
@pytest.mark.parametrize(
    "shares",
    [np.array([]), np.linspace(0, 0.3, 30), np.linspace(0.9, 1, 30)],
    ids=["nothing", "the beginning", "the end"],
)
def test_an_interpolated_clock_is_logarithmic_however_sparse_the_record(
    peak: float, shares: np.ndarray
) -> None:
    assert measured(peak, shares, interpolated) == pytest.approx(on_a_logarithmic_clock(peak), abs=0.04)


def test_measurements_alone_are_so_where_they_are_dense() -> None:
    dense, late = np.linspace(0, 1, 2000), np.linspace(0.8, 1, 30)
    assert measured(0.77, dense, logarithmic) == pytest.approx(on_a_logarithmic_clock(0.77), abs=0.04)
    assert measured(0.77, late, logarithmic) < on_a_logarithmic_clock(0.77) - 0.3


def test_measurements_are_the_first_at_or_after_40_moments_each_once() -> None:
    steps = np.array([1, 2, 3, 50, 60, 70, 80, 90, 95, 100])
    assert logarithmic(steps, steps).tolist() == [1, 2, 3, 50, 60, 70, 80, 90, 100]
    assert linear(steps, steps).tolist() == [1, 50, 60, 70, 80, 90, 95, 100]
