"""The flow of full matrices against scipy, against its limit, and under what must not change it."""

import math

import numpy
import pytest
import torch
from scipy.integrate import solve_ivp

from rankrise import predict


def plain_products(network, starts, log10_alpha, times):
    """The products at rescaled times by scipy's DOP853 in (U, V): plain weights, plain autograd."""
    unit = -log10_alpha * math.log(10)
    tensors = [tensor for pair in zip(*starts, strict=True) for tensor in pair]
    sizes, shapes = [tensor.numel() for tensor in tensors], [tensor.shape for tensor in tensors]

    def weights(y):
        parts = torch.from_numpy(y).split(sizes)
        flat = [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]
        return list(zip(flat[::2], flat[1::2], strict=True))

    def rate(_, y):
        pairs = weights(y)
        products = [(u @ v.T).requires_grad_() for u, v in pairs]
        slopes = torch.autograd.grad(network(*products), products)
        moved = [part for (u, v), g in zip(pairs, slopes, strict=True) for part in (-g @ v, -g.T @ u)]
        return unit * torch.cat([part.flatten() for part in moved]).numpy()

    start = 10.0**log10_alpha * torch.cat([tensor.flatten() for tensor in tensors]).numpy()
    solved = solve_ivp(
        rate, (0, max(times)), start, "DOP853", t_eval=times, rtol=1e-9, atol=1e-5 * 10.0**log10_alpha
    )
    return [[u @ v.T for u, v in weights(numpy.ascontiguousarray(y))] for y in solved.y.T]


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
