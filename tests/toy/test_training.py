"""Gradient descent and full weights against the exact flow, closed forms and a slow implementation."""

import math

import pytest
import torch

from rankrise import predict
from rankrise.toy import ToySettings
from rankrise.toy.descent import LARGEST, full_loss, gradient_descent, train_full_weights
from rankrise.toy.run import initialisation_of, network_of


def test_descent_is_what_an_optimiser_does() -> None:
    network = predict.diagonal_head(3, 4, 20, seed=1)
    u0, v0 = predict.random_start(6, seed=2)
    u, v = ((0.1 * w).requires_grad_() for w in (u0, v0))
    optimiser = torch.optim.SGD([u, v], lr=0.05)
    steps = math.ceil(2 * math.log(10) / 0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        network(u * v).backward()
        optimiser.step()
    descent = gradient_descent(network, u0, v0, log10_alpha=-1, step=0.05, until=2.0)
    torch.testing.assert_close(descent.values[-1], (u * v).detach(), rtol=1e-9, atol=1e-12)
    assert float(descent.times[-1]) == pytest.approx(steps * 0.05 / math.log(10))


def test_descent_approaches_the_flow_in_proportion_to_its_step() -> None:
    network = predict.diagonal_head(3, 4, 40, seed=1)
    u0, v0 = predict.random_start(6, seed=2)
    exact = predict.gradient_flow(network, u0, v0, log10_alpha=-8, until=1.0).activation_times()
    reached = exact.isfinite()
    assert reached.sum() >= 2
    late = [
        (gradient_descent(network, u0, v0, -8, step, 1.0).activation_times / exact - 1)[reached]
        for step in (0.04, 0.02)
    ]
    assert (late[1] > 0).all()
    # A step's own length limits how exactly an activation time is known: 0.02 / (8 log 10) of about 0.6.
    torch.testing.assert_close(late[0] / late[1], torch.full_like(late[0], 2.0), rtol=0.2, atol=0)


def test_a_step_too_large_stops_and_says_so() -> None:
    network = predict.diagonal_head(3, 4, 20, seed=1)
    u0, v0 = predict.random_start(6, seed=2)
    descent = gradient_descent(network, u0, v0, log10_alpha=-1, step=50.0, until=500.0)
    assert "50" in descent.message
    assert max(descent.losses.max(), descent.values.abs().max()) < LARGEST


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 2)])
def test_full_weights_contain_the_diagonal_ones(layers: int, heads: int) -> None:
    network = network_of(ToySettings(dimension=3, tokens=4, samples=10, layers=layers, heads=heads), seed=3)
    u, v = predict.random_start(network, seed=4)
    weights = torch.stack(
        [w.view(layers, heads, 2, 3).diag_embed()[:, :, kind] for kind in (0, 1) for w in (u, v)]
    )
    torch.testing.assert_close(full_loss(network, weights), network(u * v))


@pytest.mark.slow
def test_full_weights_learn_the_teacher_one_value_after_another() -> None:
    network = predict.diagonal_head(4, 4, 40, seed=6)
    full = train_full_weights(network, log10_scale=-8, step=0.1, until=3.0)
    assert full.losses[-1] < 0.2 * full.losses[0]
    assert (full.singular_values_vo[:, :-1] >= full.singular_values_vo[:, 1:]).all()
    assert len(full.predicted_vo) >= 2
    active = (full.singular_values_vo > 0.05).sum(1)
    assert active[0] == 0
    for rank, predicted in enumerate(full.predicted_vo[:2].tolist(), start=1):
        reached = float(full.rescaled_times[active >= rank][0])
        # Predicted for a vanishing scale; at 1e-8 off by a few times 1/log(1/scale), 5 %.
        assert reached == pytest.approx(predicted, rel=0.25)


def test_a_seed_draws_different_numbers_for_data_and_weights() -> None:
    settings = ToySettings(dimension=3, tokens=4, samples=10)
    u0, _ = initialisation_of(settings, seed=0)
    assert not torch.isin(u0, network_of(settings, seed=0).inputs).any()
