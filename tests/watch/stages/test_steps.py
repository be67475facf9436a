"""Steps of one curve: where, how sure, and what does not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankrise import watch
from rankrise.foundations.errors import RankriseError

STEPS = np.arange(1, 1501)


def staircase(*at: int, factor: float = 0.7, noise: float = 0.03, seed: int = 0) -> np.ndarray:
    """A slow decay with drops, under noise."""
    loss = 2.3 * STEPS**-0.1
    for step in at:
        loss = loss * np.where(step < STEPS, factor, 1.0)
    return loss * np.exp(noise * np.random.default_rng(seed).standard_normal(len(STEPS)))


def test_finds_each_drop_and_its_size() -> None:
    found = watch.find_steps(STEPS, staircase(100, 400, 900))
    assert len(found) == 3
    for step, at in zip(found, (100, 400, 900), strict=True):
        assert abs(step.time - at) < 0.02 * at
        assert step.after / step.before == pytest.approx(0.7, abs=0.06)
        assert step.extent[0] <= step.time <= step.extent[1]


def test_the_end_of_a_bump_is_no_step() -> None:
    """A loss that wanders above a steady decay and comes back reaches new lows at once, from no plateau."""
    bumps = 0.3 * sum(
        np.clip((STEPS - start) / 60, 0, 1) * (start + 80 > STEPS) for start in (500, 800, 1100)
    )
    noise = 0.01 * np.random.default_rng(0).standard_normal(len(STEPS))
    assert not watch.find_steps(STEPS, np.exp(bumps + noise - STEPS / 400))


def test_intervals_cover_the_truth() -> None:
    """Nine of ten of them should; of 30, 22 or fewer would have a probability of 0.5 %."""
    found = [watch.find_steps(STEPS, staircase(500, factor=0.93, noise=0.1, seed=seed)) for seed in range(30)]
    covered = [step.interval[0] <= 501 and step.interval[1] >= 500 for steps in found for step in steps]
    assert len(covered) >= 25
    assert np.mean(covered) > 22 / 30


def test_probability_falls_with_noise() -> None:
    def sure(noise: float) -> float:
        drop = [
            watch.find_steps(STEPS, staircase(500, factor=0.9, noise=noise, seed=seed), probability=0)
            for seed in range(5)
        ]
        return float(
            np.mean([max([s.probability for s in steps if 450 < s.time < 550], default=0) for steps in drop])
        )

    assert sure(0.02) > 0.99
    assert sure(0.02) > sure(0.5)
    assert sure(0.5) < 0.5


@settings(max_examples=8, deadline=None)
@given(scale=st.floats(1e-6, 1e6), clock=st.floats(1e-3, 1e3))
def test_units_do_not_matter(scale: float, clock: float) -> None:
    curve = staircase(300, 800)
    (first, second), (other, another) = (
        watch.find_steps(STEPS, curve),
        watch.find_steps(clock * STEPS, scale * curve),
    )
    assert other.time == pytest.approx(clock * first.time, rel=0.02)
    assert another.time == pytest.approx(clock * second.time, rel=0.02)
    assert other.after / other.before == pytest.approx(first.after / first.before, rel=0.1)


def test_order_gaps_and_nan_do_not_matter() -> None:
    source = np.random.default_rng(0)
    kept = source.permutation(len(STEPS))[:500]
    curve = staircase(300, 800)
    curve[::7] = np.nan
    found = watch.find_steps(STEPS[kept], curve[kept])
    assert [round(step.time / 100) for step in found] == [3, 8]


def test_a_spike_is_no_step() -> None:
    curve = staircase()
    curve[600:620] *= 3
    assert watch.find_steps(STEPS, curve) == []
    assert watch.find_steps(STEPS, 10 - curve, direction="up") == []
    assert watch.find_steps(STEPS, curve, direction="up") == []


def test_a_step_is_found_once_its_plateau_is_seen() -> None:
    curve = staircase(900)
    assert watch.find_steps(STEPS[:901], curve[:901]) == []
    assert len(watch.find_steps(STEPS[:1000], curve[:1000])) == 1


def test_a_value_that_grows_out_of_nothing() -> None:
    """An exponential from 1e-12 that saturates: a step of the value, not of its logarithm."""
    value = 1 / (1 + 1e12 * np.exp(-STEPS / 20))
    [step] = watch.find_steps(STEPS, value, direction="up", scale="linear")
    assert step.time == pytest.approx(20 * np.log(1e12), rel=0.02)
    assert (step.before, step.after) == pytest.approx((0, 1), abs=0.15)
    assert watch.find_steps(STEPS, value, direction="up") == []


@pytest.mark.parametrize("count", [0, 1, 7])
def test_little_is_not_enough(count: int) -> None:
    assert watch.find_steps(STEPS[:count], staircase(3)[:count]) == []


def test_nothing_usable_is_nothing_found() -> None:
    assert watch.find_steps(STEPS, np.full(len(STEPS), np.nan)) == []
    assert watch.find_steps(STEPS, -np.ones(len(STEPS))) == []
    assert watch.find_steps(STEPS, np.zeros(len(STEPS)), scale="linear") == []


def test_rows_of_different_lengths_are_refused() -> None:
    with pytest.raises(RankriseError, match="of one length"):
        watch.find_steps(STEPS, STEPS[1:])


def test_as_json() -> None:
    [step] = watch.find_steps(STEPS, staircase(400))
    assert step.to_dict()["interval"] == [step.interval[0], step.interval[1]]
    assert set(step.to_dict()) == {"time", "interval", "extent", "probability", "before", "after"}
