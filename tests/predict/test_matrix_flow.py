"""The flow of full matrices against scipy, against its limit, and under what must not change it."""

import math

import pytest
import torch
from small_losses import plain_products

from rankrise import predict


def check_slopes(network, starts, stages):
    until = 1.05 * stages[-1].time
    flows = [predict.gradient_flow(network, *starts, scale, until) for scale in (-100, -300)]
    convergence = predict.compare(stages, flows)
    assert len(convergence.slopes) == len(stages)
    assert max(convergence.slope_errors) < 1e-4
    assert sum(int(times.isfinite().sum()) for times in flows[-1].activation_times()) == len(stages)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "log10_alpha"),
    [(predict.matrix_sensing(3, 2, samples=30), -8), (predict.full_head(2, 3, 20), -4)],
)
def test_the_flow_is_that_of_the_plain_weights(network, log10_alpha):
    starts = predict.random_start(network, seed=1)
    first = predict.greedy(network, max_stages=1)[0].time
    times = [0.5 * first, first, 1.1 * first, 1.5 * first, 2.5 * first]
    flow = predict.gradient_flow(network, *starts, log10_alpha, until=times[-1], tolerance=1e-7)
    for time, products in zip(times, plain_products(network, starts, log10_alpha, times), strict=True):
        torch.testing.assert_close(flow.at(time), products, rtol=0, atol=2e-5)
    assert float(flow.losses[-1]) == pytest.approx(float(network(*flow.at(times[-1]))), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "columns"),
    [((3, 3), 3), ((2, 3), 2), ((3, 3), 2), ((2, 2), 3)],
    ids=["square", "rectangular", "c < d", "c > d"],
)
def test_stage_times_of_sensing_are_the_limit(shape, columns):
    network = predict.matrix_sensing(*shape, samples=40, seed=2)
    stages = predict.greedy(network, columns=columns)
    assert len(stages) == min(*shape, columns)
    check_slopes(network, predict.random_start([shape], columns, seed=3), stages)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["squared", "cross-entropy"])
def test_stage_times_of_a_softmax_head_are_the_limit(objective):
    network = predict.full_head(2, 3, 20, teacher="full", objective=objective)
    stages = predict.greedy(network)
    # Cross-entropy does not see what all outputs have in common: one direction of VO is never learned.
    assert len(stages) == {"squared": 4, "cross-entropy": 3}[objective]
    check_slopes(network, predict.random_start(network, seed=3), stages)


def test_tiny_scales_are_numbers_like_any_other():
    network = predict.matrix_sensing(2, samples=20)
    ((u,), (v,)) = predict.random_start([(2, 2)])
    flow = predict.gradient_flow(network, [u.numpy()], [v.tolist()], -1000, until=0.1)
    expected = torch.linalg.svdvals(u @ v.T).log() - 2000 * math.log(10)
    torch.testing.assert_close(flow.log_singular_values[0][0], expected, rtol=1e-12, atol=0)
    assert not flow.log_singular_values[0].exp()[0].any()


def test_endings_say_why():
    network = predict.matrix_sensing(2, samples=20)
    starts = predict.random_start([(2, 2)])
    assert predict.gradient_flow(network, *starts, -8, 0.1).ending == "reached"
    runaway = predict.gradient_flow(lambda a: -(a**4).sum() - a.sum(), *starts, -2, until=50.0)
    assert runaway.ending == "not finite"
