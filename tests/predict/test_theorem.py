"""Theorem 4.5 on a small head: the flow converges to Algorithm 1 as the initialisation vanishes."""

import pytest
import torch

from rankrise import RankriseError, predict


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_the_error_of_stage_times_falls_like_the_inverse_logarithm(head, stages):
    u0, v0 = predict.random_initialisation(head.size, seed=1)
    flows = [predict.gradient_flow(head, u0, v0, scale, until=3.8) for scale in (-8, -32, -100, -300, -1000)]
    convergence = predict.compare(stages, flows)
    assert len(convergence.comparisons[0].stages) >= 12
    assert convergence.time_errors_fall
    assert 0.8 < convergence.time_exponent < 1.3
    assert convergence.time_errors[-1] < 2e-3
    assert convergence.comparisons[-1].support_grows_by_at_most_one
    assert convergence.comparisons[-1].largest_point_error < 0.05


def test_a_large_initialisation_is_not_close_to_the_limit(head, stages):
    u0, v0 = predict.random_initialisation(head.size, seed=1)
    comparison = predict.compare(stages, predict.gradient_flow(head, u0, v0, -0.5, until=3.8))
    assert comparison.largest_time_error > 0.2
    assert comparison.largest_point_error > 0.2


def test_compare_refuses_what_does_not_belong_together(head, stages):
    flow = predict.gradient_flow(lambda a: ((a - 1) ** 2).sum(), double(1.0), double(0.5), -8, until=1.0)
    with pytest.raises(RankriseError, match="16 coordinates and flow has 1"):
        predict.compare(stages, flow)
    with pytest.raises(RankriseError, match="at least two different scales"):
        predict.compare(stages, [flow])
