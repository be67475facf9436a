"""Theorem 4.5, its assumptions and the paper's perturbation experiments, on a small head."""

import math

import pytest
import torch

from rankrise import RankriseError, predict


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


@pytest.fixture(scope="module")
def head():
    return predict.diagonal_head(dimension=8, tokens=10, samples=100)


@pytest.fixture(scope="module")
def stages(head):
    return predict.greedy(head, head.size, until=4.0)


def test_the_error_of_stage_times_falls_like_the_inverse_logarithm(head, stages):
    u0, v0 = predict.random_initialisation(head.size, seed=1)
    flows = [predict.gradient_flow(head, u0, v0, scale, until=3.8) for scale in (-8, -32, -100, -300, -1000)]
    trend = predict.compare(stages, flows)
    assert len(trend.comparisons[0].stages) >= 12
    assert trend.time_errors_fall
    assert 0.8 < trend.time_exponent < 1.3
    assert trend.time_errors[-1] < 2e-3
    assert trend.comparisons[-1].support_grows_by_at_most_one
    assert trend.comparisons[-1].largest_point_error < 0.05


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


def test_assumptions_hold_on_the_toy(head, stages):
    check = predict.check_assumptions(head, head.size, stages, trials=1)
    assert check.hold
    assert len(check.strict_minima.margins) == len(stages)
    # the margin of strict minima, from the second derivative of L(u, s u) itself
    stage = stages[4]
    support, signs = list(stage.support), stage.point[list(stage.support)].sign()

    def of_weights(u):
        return head(
            torch.zeros(head.size, dtype=torch.float64).index_put((torch.tensor(support),), signs * u * u)
        )

    exact = torch.func.hessian(of_weights)(stage.point[support].abs().sqrt())
    assert check.strict_minima.margins[4] == pytest.approx(float(torch.linalg.eigvalsh(exact)[0]), rel=1e-6)


def test_a_flat_direction_breaks_strict_minima():
    """`L` depends on a_0 + a_1 only once both are active: a valley, not a minimum."""
    point = predict.Stage(1.0, 0, 1, 0.0, double(0.5, 0.5), (), math.inf, ())
    stages = predict.Stages((point,), 0.5, "nothing moves", "")
    check = predict.check_assumptions(lambda a: (a.sum() - 1) ** 2 / 2, 2, stages)
    assert check.strict_minima.margin == pytest.approx(0.0, abs=1e-12)
    assert not check.hold


def test_a_double_well_breaks_noise_robustness():
    """Beside a shallow minimum a barrier: noise of 0.01 on the weights returns, noise of 1 does not."""

    def loss(a):
        return (-2 * a + 1.5 * a**2 - 0.05 * a**5).sum() + 0.004 * (a**6).sum() + ((a - 0.5) ** 2)[1] * 3

    stages = predict.greedy(loss, 2)
    assert predict.check_assumptions(loss, 2, stages, noise=0.01).noise_robustness.holds
    assert not predict.check_assumptions(loss, 2, stages, noise=2.0, trials=8).noise_robustness.holds


def test_strict_minima_experiment_returns_on_a_plateau(head):
    u0, v0 = predict.random_initialisation(head.size, seed=1)
    flow = predict.gradient_flow(head, u0, v0, -32, until=3.0)
    experiments = predict.strict_minima_experiment(head, flow, times=[0.7, 2.7], duration=20)
    for experiment in experiments:
        assert experiment.disturbance > 0.01
        assert experiment.remainder < 0.05 * experiment.disturbance
        torch.testing.assert_close(
            experiment.original.values[0], flow.at(experiment.time), rtol=1e-9, atol=1e-12
        )


def test_noise_touches_only_weights_above_the_threshold(head):
    u0, v0 = predict.random_initialisation(head.size, seed=1)
    flow = predict.gradient_flow(head, u0, v0, -32, until=1.0)
    (experiment,) = predict.strict_minima_experiment(head, flow, times=[0.7], noise=0.05, duration=1)
    moved = experiment.perturbed.values[0] != experiment.original.values[0]
    u, v = flow.weights_at(0.7)
    assert moved.tolist() == ((u.abs() > 1e-5) | (v.abs() > 1e-5)).tolist()
    assert 0 < int(moved.sum()) < head.size
    still = ~moved
    torch.testing.assert_close(
        experiment.perturbed.places[0][still], flow.place_at(0.7)[still], rtol=0, atol=0
    )


def test_noise_robustness_experiment_starts_at_each_crossing(head):
    u0, v0 = predict.random_initialisation(head.size, seed=1)
    flow = predict.gradient_flow(head, u0, v0, -32, until=0.95)
    experiments = predict.noise_robustness_experiment(head, flow, duration=10)
    crossings = [c.time for c in flow.crossings(1e-5) if c.upward]
    assert [e.time for e in experiments] == crossings
    assert len(crossings) >= 2
    assert all(e.remainder < 0.5 for e in experiments)
