"""Steps of one curve: where they are, how sure, and none on curves without stages."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal
from smooth_curves import smooth_curve

from rankrise.watch._stages import PIECES, draw_curves, find_steps

STEPS = np.arange(1, 1501)
SMOOTH = 55


def test_draws_are_of_the_exact_posterior() -> None:
    """For seven values: the mean and the variance of the curve, summed over all 64 cuts."""
    source = np.random.default_rng(3)
    places = np.sort(source.uniform(0, 2, 7))
    variances = source.uniform(0.02, 0.1, 7)
    values = np.where(places < 1, 0.0, 1.0) + np.sqrt(variances) * source.standard_normal(7)
    stop, spread, middle = min(0.5, PIECES / 7), np.ptp(values) ** 2, np.median(values)
    weights, means, squares = [], [], []
    for cuts in itertools.product([False, True], repeat=6):
        edges = [0, *(place + 1 for place, cut in enumerate(cuts) if cut), 7]
        weight, mean, square = stop ** sum(cuts) * (1 - stop) ** (6 - sum(cuts)), [], []
        for start, end in itertools.pairwise(edges):
            inside = slice(start, end)
            precision = 1 / variances[inside]
            centred = places[inside] - (precision * places[inside]).sum() / precision.sum()
            width = np.sqrt((precision * centred**2).sum() / precision.sum())
            design = np.stack([np.ones(end - start), centred / width] if end - start > 1 else [np.ones(1)], 1)
            curve = spread * design @ design.T
            data = curve + np.diag(variances[inside])
            weight *= multivariate_normal.pdf(values[inside] - middle, np.zeros(end - start), data)
            gain = curve @ np.linalg.inv(data)
            expected = gain @ (values[inside] - middle)
            mean += list(expected)
            square += list(np.diag(curve - gain @ curve) + expected**2)
        weights.append(weight)
        means.append(mean)
        squares.append(square)
    part = np.array(weights) / np.sum(weights)
    mean = part @ np.array(means)
    std = np.sqrt(part @ np.array(squares) - mean**2)
    draws = draw_curves(places, values, variances, draws=20000)
    assert np.allclose(draws.mean(0), mean + middle, atol=5 * std.max() / np.sqrt(20000))
    assert np.allclose(draws.std(0), std, rtol=0.05)


def staircase(*at: int, factor: float = 0.7, noise: float = 0.03, seed: int = 0) -> np.ndarray:
    """A slow decay with drops, under noise."""
    loss = 2.3 * STEPS**-0.1
    for step in at:
        loss = loss * np.where(step < STEPS, factor, 1.0)
    return loss * np.exp(noise * np.random.default_rng(seed).standard_normal(len(STEPS)))


@settings(max_examples=5)
@given(scale=st.floats(1e-6, 1e6), clock=st.floats(1e-3, 1e3))
def test_each_drop_and_its_size_whatever_the_units(scale: float, clock: float) -> None:
    found = find_steps(clock * STEPS, scale * staircase(100, 400, 900))
    for step, at in zip(found, (100, 400, 900), strict=True):
        assert step.time == pytest.approx(clock * at, rel=0.02)
        assert step.after / step.before == pytest.approx(0.7, abs=0.06)
        assert step.extent[0] <= step.time <= step.extent[1]


def test_intervals_cover_the_truth_and_probability_falls_with_noise() -> None:
    """Nine of ten intervals should cover; of 30, 22 or fewer would have a probability of 0.5 %."""
    found = [find_steps(STEPS, staircase(500, factor=0.93, noise=0.1, seed=seed)) for seed in range(30)]
    covered = [step.interval[0] <= 501 and step.interval[1] >= 500 for steps in found for step in steps]
    assert len(covered) >= 25
    assert np.mean(covered) > 22 / 30
    for noise, low, high in ((0.02, 0.99, 1), (0.5, 0, 0.5)):
        steps = find_steps(STEPS, staircase(500, factor=0.9, noise=noise), probability=0)
        sure = max((one.probability for one in steps if 450 < one.time < 550), default=0)
        assert low <= sure <= high


def test_neither_a_spike_nor_the_end_of_a_bump_is_a_step() -> None:
    curve = staircase()
    curve[600:620] *= 3
    assert find_steps(STEPS, curve) == find_steps(STEPS, curve, direction="up") == []
    assert find_steps(STEPS, 10 - curve, direction="up") == []
    bumps = 0.3 * sum(
        np.clip((STEPS - start) / 60, 0, 1) * (start + 80 > STEPS) for start in (500, 800, 1100)
    )
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(STEPS))
    assert find_steps(STEPS, np.exp(bumps + noise - STEPS / 400)) == []


def test_a_value_that_grows_out_of_nothing() -> None:
    """An exponential from 1e-12 that saturates: a step of the value, not of its logarithm."""
    value = 1 / (1 + 1e12 * np.exp(-STEPS / 20))
    [step] = find_steps(STEPS, value, direction="up", scale="linear")
    assert step.time == pytest.approx(20 * np.log(1e12), rel=0.02)
    assert (step.before, step.after) == pytest.approx((0, 1), abs=0.15)
    assert find_steps(STEPS, value, direction="up") == []


def test_a_loss_that_falls_into_its_noise() -> None:
    """From 1.1 to minibatch noise around 0.005 in one drop of a hundred steps: one stage, and none after."""
    steps = np.arange(1, 2001)
    for seed in range(3):
        noise = np.where(steps < 1300, 0.03, 1.0) * np.random.default_rng(seed).standard_normal(2000)
        level = 0.005 + 0.55 * (1 - np.tanh((steps - 1265) / 25)) + 0.3 * np.exp(-steps / 200)
        [step] = find_steps(steps, level * np.exp(noise))
        assert 1210 < step.extent[0] < step.extent[1] < 1400


def test_too_little_to_find_a_step_in() -> None:
    for count in (0, 1, 7):
        assert find_steps(STEPS[:count], staircase(3)[:count]) is None
    for times, values in ((2.0 ** np.arange(30), np.ones(30)), (STEPS, STEPS * np.nan), (STEPS, -STEPS)):
        assert find_steps(times, values) is None


# ----------------------------------------------------------------------------------------------------------
# Curves without stages.


@pytest.mark.slow
def test_smooth_curves_under_noise() -> None:
    """Eleven kinds of decay and growth, white and correlated noise up to 20 %, spikes, irregular records."""
    alarms = []
    for seed in range(1000, 1000 + SMOOTH):
        name, steps, values, direction = smooth_curve(seed)
        if find_steps(steps, values, direction=direction):
            alarms.append((seed, name))
    assert len(alarms) <= 0.05 * SMOOTH, alarms


TIME = np.linspace(0.001, 1, 700)
DECAYS = (TIME**-0.5, np.exp(-5 * TIME), 0.01 + np.exp(-30 * TIME), 0 * TIME + 2.3, np.exp(-(TIME**0.5)))
GROWTHS = (TIME**2, TIME**0.3, 1 - np.exp(-9 * TIME), np.log1p(50 * TIME), np.exp(3 * TIME), 0 * TIME + 1)


def test_smooth_curves_without_noise() -> None:
    for decay in DECAYS:
        assert find_steps(TIME, decay) == []
    for growth in GROWTHS:
        assert find_steps(TIME, growth, direction="up") == []
        assert find_steps(TIME, growth, direction="up", scale="linear") == []
