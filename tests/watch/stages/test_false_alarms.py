"""On curves without stages none is found, or hardly ever."""

import numpy as np
import pytest
from smooth_curves import smooth_curve

from rankrise import predict, watch

CURVES = 77


def test_smooth_curves_under_noise() -> None:
    """Eleven kinds of decay and growth, white and correlated noise up to 20 %, spikes, irregular records."""
    alarms = []
    for seed in range(1000, 1000 + CURVES):
        name, steps, values, direction = smooth_curve(seed)
        if watch.find_steps(steps, values, direction=direction):
            alarms.append((seed, name))
    assert len(alarms) <= 0.05 * CURVES, alarms


def test_without_noise_never() -> None:
    time = np.linspace(0.001, 1, 700)
    decays = (
        time**-0.5,
        np.exp(-5 * time),
        0.01 + np.exp(-30 * time),
        np.full(700, 2.3),
        np.exp(-(time**0.5)),
    )
    assert [watch.find_steps(time, decay) for decay in decays] == [[]] * len(decays)
    growths = (
        time**2,
        time**0.3,
        1 - np.exp(-9 * time),
        np.log1p(50 * time),
        np.exp(3 * time),
        np.zeros(700),
    )
    for scale in ("log", "linear"):
        assert [watch.find_steps(time, growth, direction="up", scale=scale) for growth in growths] == [
            []
        ] * len(growths)


@pytest.mark.parametrize("direction", ["up", "down"])
@pytest.mark.parametrize("scale", ["log", "linear"])
def test_pure_noise(direction: str, scale: str) -> None:
    found = 0
    for seed in range(10):
        noise = np.exp(0.3 * np.random.default_rng(seed).standard_normal(400))
        found += len(watch.find_steps(np.arange(1, 401), noise, direction=direction, scale=scale))  # type: ignore[arg-type]
    assert found == 0


@pytest.mark.parametrize("seed", range(3))
def test_weights_that_start_large_have_no_stages(seed: int) -> None:
    """At alpha = 1 nothing is near zero to begin with, and everything is learned at once."""
    network = predict.diagonal_head(dimension=8, tokens=10, samples=100, seed=seed)
    u, v = predict.random_start(16, seed=seed)
    losses = []
    for _ in range(500):
        loss, gradient = network.value_and_gradient(u * v)
        losses.append(float(loss))
        u, v = u - 0.01 * v * gradient, v - 0.01 * u * gradient
    steps = np.arange(1, 501)
    noise = np.exp(0.03 * np.random.default_rng(seed).standard_normal(500))
    assert losses[-1] < 0.8 * losses[0]
    assert watch.find_steps(steps, losses) == []
    assert watch.find_steps(steps, losses * noise) == []


def test_runs_of_many_curves() -> None:
    """A dozen curves of ranks and values a run, none of which steps: at most one run in ten alarms."""
    alarms = 0
    steps = np.unique(np.geomspace(1, 5000, 90).astype(int))
    for seed in range(10):
        source = np.random.default_rng(seed)
        curves = [
            watch.Curve(
                "loss", steps, steps**-0.2 * np.exp(0.05 * source.standard_normal(90)[: len(steps)]), "down"
            )
        ]
        for number in range(12):
            growth = 1 + source.uniform(0.5, 5) * (1 - np.exp(-steps / 10 ** source.uniform(2, 4)))
            noise = np.exp(source.choice([0.01, 0.05]) * source.standard_normal(len(steps)))
            curves.append(watch.Curve(f"curve {number}", steps, growth * noise, alone=False))
        alarms += len(watch.find_stages(curves)) > 0
    assert alarms <= 1


def test_noise_of_a_loss_that_has_converged() -> None:
    """From 1.1 to minibatch noise around 0.005 in one drop of a hundred steps: one stage, and none after."""
    steps = np.arange(1, 2001)
    for seed in range(6):
        noise = np.where(steps < 1300, 0.03, 1.0) * np.random.default_rng(seed).standard_normal(2000)
        level = 0.005 + 0.55 * (1 - np.tanh((steps - 1265) / 25)) + 0.3 * np.exp(-steps / 200)
        [step] = watch.find_steps(steps, level * np.exp(noise))
        assert 1210 < step.extent[0] < step.extent[1] < 1400


def test_noise_with_heavy_tails() -> None:
    """Exponential noise, as of single examples: at most 1 of 40 decays steps."""
    steps = np.arange(1, 2001)
    decays = (1.4 * np.exp(-steps / 200), 0.5 + steps**-0.3)
    alarms = [
        bool(watch.find_steps(steps, decay * np.random.default_rng(seed).exponential(size=2000)))
        for seed in range(20)
        for decay in decays
    ]
    assert sum(alarms) <= 1
