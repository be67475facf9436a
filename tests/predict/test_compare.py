"""Theorem 4.5 as numbers: flows converge to the predicted stages as the initialisation vanishes."""

import pytest

from rankrise import predict


@pytest.mark.slow
def test_the_error_of_stage_times_falls_like_the_inverse_logarithm(head, stages):
    start = predict.random_start(head)
    flows = [predict.gradient_flow(head, *start, scale, until=3.8) for scale in (-8, -100, -1000)]
    convergence = predict.compare(stages, flows)
    assert len(convergence.comparisons[0].stages) >= 12
    assert convergence.time_errors == tuple(sorted(convergence.time_errors, reverse=True))
    assert 0.8 < convergence.time_exponent < 1.3
    assert convergence.time_errors[-1] < 2e-3
    assert convergence.comparisons[-1].largest_point_error < 0.05


def test_so_it_does_for_matrices_and_slopes_are_the_limit():
    network = predict.matrix_sensing(2, samples=30, seed=2)
    stages, start = predict.greedy(network), predict.random_start(network, seed=3)
    until = 1.2 * stages[-1].time
    flows = [predict.gradient_flow(network, *start, scale, until) for scale in (-25, -50, -200)]
    convergence = predict.compare(stages, flows)
    assert convergence.time_errors == tuple(sorted(convergence.time_errors, reverse=True))
    assert convergence.time_exponent == pytest.approx(1, abs=0.02)
    assert max(convergence.slope_errors) < 1e-4
    assert convergence.point_errors[-1] < 1e-6
