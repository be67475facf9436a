"""Estimates over heads agree with scipy's, and the interval decides."""

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from rankrise.claims.claim import Measure, Number, verdict_of
from rankrise.claims.heads import Estimate, in_order, means


def mean(*seeds: np.ndarray) -> Estimate:
    """Over the heads of one layer."""
    return means({1: seeds})[0].mean()


def test_heads_are_drawn_again_within_their_layers() -> None:
    """Layers that differ, whose heads do not, leave nothing to chance: pooled heads would."""
    (layers,) = means({1: [np.full(8, 0.2)], 2: [np.full(8, 0.8)]})
    assert astuple(layers.mean()) == pytest.approx((0.5, 0.5, 0.5))
    assert astuple(mean(np.full(8, 0.2), np.full(8, 0.8))) == pytest.approx((0.5, 0.2, 0.8))


def test_statistics_agree_with_scipy_s() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.standard_normal((2, 40)).round(1)  # with ties
    values = generator.standard_normal(400)
    half = 1.645 * values.std() / 20
    assert astuple(mean(values)) == pytest.approx(
        (values.mean(), values.mean() - half, values.mean() + half), abs=0.01
    )
    samples = [{1: [one]} for one in (first, second)]
    pairs = stats.mannwhitneyu(first, second).statistic / 1600
    ties = (first[:, None] == second).mean()
    assert in_order(samples).mean().value == pytest.approx(pairs - ties / 2)
    ours, theirs = means(*samples)
    low, high = np.quantile((ours.drawn - theirs.drawn)[0, 1:], [0.05, 0.95])
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
    assert (low, high) == pytest.approx((welch.low, welch.high), abs=0.05)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most"),
    [(0.6, 0.7, True, False), (0.3, 0.4, False, True), (0.4, 0.6, None, None)],
)
def test_the_interval_decides_three_ways(low, high, at_least, at_most):
    estimate = Estimate((low + high) / 2, low, high)
    assert Number("", ">= 0.5", "").measure(estimate).passes is at_least
    assert Number("", "<= 0.5", "").measure(estimate).passes is at_most


def test_one_failing_measure_refutes_and_an_unclear_one_leaves_open() -> None:
    def measure(name: str, value: float | Estimate | None) -> Measure:
        return Number(name, "<= 0.5", "").measure(value)

    clear, wide = measure("clear", 0.1), measure("wide", Estimate(0.4, 0.3, 0.6))
    unknown, failing = measure("unknown", None), measure("failing", 0.7)
    for deciding, verdict, named in (
        ([clear], "holds", ""),
        ([clear, unknown], "not decided", "unknown"),
        ([clear, wide, unknown], "not decided", "wide"),
        ([wide, failing], "does not hold", "failing"),
    ):
        found, reason = verdict_of(deciding)
        assert found == verdict
        assert named in reason
