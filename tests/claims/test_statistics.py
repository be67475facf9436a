"""Estimates over heads agree with scipy's, and the interval decides."""

from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from rankrise.claims import Measure
from rankrise.claims.claim import Number, verdict_of
from rankrise.claims.statistics import Estimate, Heads, contrast, in_order, spearman


def test_heads_are_drawn_again_within_their_layers() -> None:
    """Layers that differ, whose heads do not, leave nothing to chance: pooled heads would."""
    layers = Heads((1, 2), [[np.full(8, 0.2)], [np.full(8, 0.8)]])
    assert astuple(layers.over_layers("mean")) == pytest.approx((0.5, 0.5, 0.5))
    seeds = Heads((1,), [[np.full(8, 0.2), np.full(8, 0.8)]])
    assert astuple(seeds.over_layers("mean")) == pytest.approx((0.5, 0.2, 0.8))


def test_the_median_layer_has_the_interval_of_heads_that_are_drawn_again() -> None:
    generator = np.random.default_rng(3)
    layers = [generator.normal(middle, 1.0, 50) for middle in (0, 1, 1.1, 5)]
    found = Heads((1, 2, 3, 4), [[heads] for heads in layers]).over_layers("median")
    drawn = [np.median([generator.choice(heads, 50).mean() for heads in layers]) for _ in range(4000)]
    assert found.value == pytest.approx(np.median([heads.mean() for heads in layers]))
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.05, 0.95]), abs=0.02)


def test_statistics_agree_with_scipy_s() -> None:
    generator = np.random.default_rng(1)
    first, second = generator.standard_normal((2, 40)).round(1)  # with ties
    assert spearman(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert spearman(first, np.ones(40)) == 0.0
    values = generator.standard_normal(400)
    half = 1.645 * values.std() / 20
    mean = Heads((1,), [[values]]).over_layers("mean")
    assert astuple(mean) == pytest.approx(
        (values.mean(), values.mean() - half, values.mean() + half), abs=0.01
    )
    pairs = stats.mannwhitneyu(first, second).statistic / 1600
    ties = (first[:, None] == second).mean()
    order = in_order([Heads((1,), [[one]]) for one in (first, second)])
    assert order.value == pytest.approx(pairs - ties / 2)
    difference = contrast([Heads((1,), [[one]]) for one in (first, second)], [1, -1])[1]
    welch = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.9)
    assert (difference.low, difference.high) == pytest.approx((welch.low, welch.high), abs=0.05)


@pytest.mark.parametrize(
    ("low", "high", "at_least", "at_most"),
    [(0.6, 0.7, True, False), (0.3, 0.4, False, True), (0.4, 0.6, None, None)],
)
def test_the_interval_decides_three_ways(
    low: float, high: float, at_least: bool | None, at_most: bool | None
) -> None:
    estimate = Estimate((low + high) / 2, low, high)
    assert Number("", ">= 0.5", "").measure(estimate).passes is at_least
    assert Number("", "<= 0.5", "").measure(estimate).passes is at_most


def test_one_failing_measure_refutes_and_an_unclear_one_leaves_open() -> None:
    def measure(name: str, value: float | Estimate | None) -> Measure:
        return Number(name, "<= 0.5", "").measure(value)

    clear, wide = measure("clear", 0.1), measure("wide", Estimate(0.4, 0.3, 0.6))
    unknown, failing = measure("unknown", None), measure("failing", 0.7)
    assert verdict_of([clear])[0] == "holds"
    assert verdict_of([clear, unknown]) == ("not decided", "the run does not determine: unknown.")
    assert "wide" in verdict_of([clear, wide, unknown])[1]
    assert verdict_of([wide, failing]) == ("does not hold", "it fails on: failing.")
