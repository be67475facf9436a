"""The exact flow against closed forms, an integration in (u, v), and what the equations promise."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_losses import double, plain_products, quadratic

from rankrise import predict


@pytest.fixture(scope="module")
def head():
    return predict.diagonal_head(dimension=4, tokens=6, samples=50, seed=4)


@pytest.mark.slow
@pytest.mark.parametrize("log10_alpha", [-1, -4])
def test_agrees_with_an_integration_in_the_original_coordinates(head, log10_alpha):
    u0, v0 = predict.random_start(head.size, seed=3)
    flow = predict.gradient_flow(head, u0, v0, log10_alpha, until=6.0, tolerance=1e-8)
    reached = flow.activation_times(threshold=0.05)
    assert (reached.isfinite() & (reached > 0)).sum() >= 4
    times = sorted({0.0, 1.234, 6.0, *reached[reached.isfinite()].tolist()})
    single = [one.view(-1, 1, 1) for one in (u0, v0)]  # each coordinate as a product of 1 x 1 matrices
    plain = plain_products(lambda *a: head(torch.cat(a).flatten()), single, log10_alpha, times)
    plain = torch.stack([torch.cat(products).flatten() for products in plain])
    torch.testing.assert_close(flow.at(times), plain, rtol=0, atol=2e-5)  # between steps it is interpolated
    torch.testing.assert_close(flow.at(6.0), plain[-1], rtol=0, atol=1e-6)
    for coordinate, time in enumerate(reached.tolist()):
        early = plain[: times.index(time) if time < math.inf else None, coordinate].abs()
        assert (early < 0.05).all()
    usual = predict.gradient_flow(head, u0, v0, log10_alpha, until=6.0).activation_times(threshold=0.05)
    torch.testing.assert_close(usual, reached, rtol=1e-4, atol=0)


@pytest.mark.parametrize("log10_alpha", [-1.0, -32.0, -1000.0])
def test_orthogonal_inputs_have_a_closed_form_at_every_scale(log10_alpha):
    """`L = |a - b|^2 / 2`: each coordinate solves `dz/dt = 2 (b - k sinh z)`, with `k = |c|/2`.

    For `x = k e^z` that is the logistic equation `dx/dt = (high - x)(x - low)`, whose time is a logarithm.
    """
    target = double(1.5, -0.7)
    u0, v0 = double(1.0, 0.3), double(0.5, -0.9)
    flow = predict.gradient_flow(quadratic(target), u0, v0, log10_alpha, until=3.0)
    unit = -log10_alpha * math.log(10)
    for coordinate in range(2):
        u, v, b = float(u0[coordinate]), float(v0[coordinate]), float(target[coordinate])
        sign, b = math.copysign(1, b), abs(b)
        log_k = math.log(abs(u * u - v * v) / 2) - 2 * unit
        k = math.exp(max(log_k, -700.0))
        high = b + math.sqrt(b * b + k * k)
        low = -k * k / high

        def time(z, log_k=log_k, low=low, high=high):
            x = math.exp(max(z + log_k, -700.0))
            log_distance = math.log(x - low) if z + log_k > -300 else z + log_k  # low is of the size of k^2
            return (log_distance - math.log(high - x)) / (high - low)

        level = 0.5 * b
        start = sign * math.asinh(2 * u * v / abs(u * u - v * v))
        end = math.log(level + math.sqrt(level * level + k * k)) - log_k
        expected = (time(end) - time(start)) / unit
        assert float(flow.activation_times(threshold=level)[coordinate]) == pytest.approx(expected, rel=1e-4)


def test_loss_never_rises_and_belongs_to_the_values(head):
    u0, v0 = predict.random_start(head.size, seed=1)
    flow = predict.gradient_flow(head, u0, v0, log10_alpha=-32, until=3.0)
    exact = torch.stack([head(a) for a in flow.values])
    torch.testing.assert_close(flow.losses, exact, rtol=1e-5, atol=1e-7)
    assert (flow.losses.diff() <= 1e-6 * flow.losses[0]).all()
    assert flow.ending == "reached"
    assert float(flow.times[-1]) == 3.0


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=5).filter(
        lambda pairs: all(abs(u) > 1e-3 or abs(v) > 1e-3 for u, v in pairs)
    )
)
def test_the_conservation_law_holds_for_all_signs(pairs):
    """`u^2 - v^2` never changes (Lemma 4.1), whatever the signs of u0, v0 and of their gap; u*v is a."""
    u0, v0 = double(*(u for u, _ in pairs)), double(*(v for _, v in pairs))
    target = torch.linspace(-1, 1.5, len(pairs), dtype=torch.float64)
    flow = predict.gradient_flow(quadratic(target), u0, v0, log10_alpha=-2, until=1.0)
    for time in (0.0, 0.3, 1.0):
        u, v = flow.weights_at(time)
        torch.testing.assert_close(u * u - v * v, (u0 * u0 - v0 * v0) * 1e-4, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(u * v, flow.at(time), rtol=1e-9, atol=1e-12)
    u, v = flow.weights_at(0.0)
    torch.testing.assert_close(torch.stack([u, v]), 1e-2 * torch.stack([u0, v0]), rtol=1e-9, atol=1e-12)


def test_tied_coordinates_keep_their_sign():
    """`|u0| = |v0|`: a is `s exp(log|a|)`, here with a target of the other sign for the second coordinate."""
    target = double(1.0, 1.0, 1.0)
    flow = predict.gradient_flow(
        quadratic(target), double(1, 1, 1), double(1, -1, 0.5), log10_alpha=-16, until=2.0
    )
    assert (flow.values[:, 1] <= 0).all()
    assert flow.activation_times()[1] == math.inf
    # da/dt = 2a(1 - a) from alpha^2: a logistic curve, so a = 1/2 at t = log(1/alpha^2)/2 - ..., rescaled 1.
    assert float(flow.activation_times(threshold=0.5)[0]) == pytest.approx(1.0, rel=1e-4)
