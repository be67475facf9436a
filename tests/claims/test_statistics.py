"""Estimates over heads, with intervals."""

import numpy as np
import pytest

from rankrise.claims.statistics import Heads


def test_the_median_layer_has_the_interval_of_heads_that_are_drawn_again() -> None:
    generator = np.random.default_rng(3)
    layers = [generator.normal(middle, 1.0, 50) for middle in (0, 1, 1.1, 5)]
    found = Heads((1, 2, 3, 4), [[heads] for heads in layers]).median_layer()
    drawn = [np.median([generator.choice(heads, 50).mean() for heads in layers]) for _ in range(4000)]
    assert found.value == pytest.approx(np.median([heads.mean() for heads in layers]))
    assert (found.low, found.high) == pytest.approx(np.quantile(drawn, [0.05, 0.95]), abs=0.02)
