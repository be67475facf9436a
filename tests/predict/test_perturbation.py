"""Perturb and follow: noise dies out on a plateau, and touches only what is above the threshold."""

import pytest
import torch

from rankrise import predict


@pytest.fixture(scope="module")
def flow(head):
    return predict.gradient_flow(head, *predict.random_start(head), -32, until=3.0)


def test_noise_on_a_plateau_dies_out(head, flow):
    for time in (0.7, 2.7):
        perturbation = predict.perturb(head, flow, time, noise=0.05, duration=20)
        assert perturbation.disturbance > 0.01
        assert perturbation.remainder < 0.05 * perturbation.disturbance
        torch.testing.assert_close(perturbation.original.values[0], flow.at(time), rtol=1e-9, atol=1e-12)


def test_noise_touches_only_weights_above_the_threshold(head, flow):
    perturbation = predict.perturb(head, flow, 0.7, noise=0.05, duration=1)
    moved = perturbation.perturbed.values[0] != perturbation.original.values[0]
    u, v = flow.weights_at(0.7)
    assert moved.tolist() == ((u.abs() > 1e-5) | (v.abs() > 1e-5)).tolist()
    assert 0 < int(moved.sum()) < head.size
    still = ~moved
    torch.testing.assert_close(
        perturbation.perturbed.places[0][still], flow.place_at(0.7)[still], rtol=0, atol=0
    )


def test_noise_at_a_crossing_keeps_to_the_path(head, flow):
    """As in the paper's test of noise robustness: little noise, just when a coordinate awakes."""
    times = [crossing.time for crossing in flow.crossings(1e-5) if crossing.upward and crossing.time < 0.95]
    assert len(times) >= 2
    assert all(predict.perturb(head, flow, time, noise=0.01, duration=10).remainder < 0.5 for time in times)
