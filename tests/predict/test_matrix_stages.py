"""The stages of full matrices against closed forms and the diagonal algorithm."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_losses import gaussian, leaving_loss, orthogonal

from rankrise import predict
from rankrise.predict._matrices import active


def gradients(loss, products):
    products = [product.detach().requires_grad_() for product in products]
    return torch.autograd.grad(loss(*products), products)


def slow_rest(loss, factors, step=0.06, steps=1700):
    """Where plain gradient descent on the active factors ends: no Hessian, no exponential, no Newton."""
    for _ in range(steps):
        slopes = gradients(loss, [u @ v.T for u, v in factors])
        factors = [
            (u - step * slope @ v, v - step * slope.T @ u)
            for (u, v), slope in zip(factors, slopes, strict=True)
        ]
    return [u @ v.T for u, v in factors]


def test_first_two_times_in_closed_form():
    """T_1 = 1 / s_1(0) and T_2 = T_1 + (1 - s_2(0) T_1) / s_1(A^1)."""
    network = predict.matrix_sensing(4, 5, samples=60)
    stages = predict.greedy(network, max_stages=2)
    at_zero = torch.linalg.svdvals(gradients(network, [torch.zeros(4, 5, dtype=torch.float64)])[0])
    first = 1 / float(at_zero[0])
    later = float(torch.linalg.svdvals(gradients(network, stages[0].points)[0])[0])
    assert stages[0].time == pytest.approx(first, rel=1e-12)
    assert stages[1].time == pytest.approx(first + (1 - float(at_zero[1]) * first) / later, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("network", [predict.matrix_sensing(3, samples=40), predict.full_head(3, 4, 40)])
def test_points_of_rest_are_where_the_flow_ends(network):
    stages = predict.greedy(network, max_stages=3)
    points = [torch.zeros(shape, dtype=torch.float64) for shape in network.shapes]
    for stage in stages:
        slope = gradients(network, points)[stage.product]
        left, sizes, right = torch.linalg.svd(points[stage.product])
        rank = int((sizes > 1e-9).sum())
        p, q = left[:, rank:], right[rank:].T
        inner = torch.linalg.svd(-p.T @ slope @ q)
        points[stage.product] = points[stage.product] + 1e-4 * p @ inner.U[:, :1] @ inner.Vh[:1] @ q.T
        factors = []
        for point in points:
            u, s, v = torch.linalg.svd(point)
            kept = s > 1e-9
            factors.append((u[:, kept] * s[kept].sqrt(), v[kept].T * s[kept].sqrt()))
        points = slow_rest(network, factors)
        torch.testing.assert_close(points, list(stage.points), rtol=0, atol=1e-4)
        points = list(stage.points)


def random_loss(seed, size):
    """A coupled, strictly convex loss of `a` (size,), with a quartic part."""
    inputs, target = gaussian(seed, 2 * size, size), gaussian(seed + 1, 2 * size)
    return lambda a: ((inputs @ a - target) ** 2).sum() / (4 * size) + 0.05 * (a**4).sum()


LOSSES = [(leaving_loss, 3), *((random_loss(seed, 4), 4) for seed in range(4))]


@pytest.mark.slow
@pytest.mark.parametrize("apart", [True, False], ids=["products of 1 x 1", "one product"])
@pytest.mark.parametrize(("loss", "size"), LOSSES)
def test_matrices_of_no_coupling_are_the_diagonal_network(loss, size, apart):
    """In one d x d product nothing couples the directions either: exponents and signs ride on them."""
    expected = predict.greedy(loss, size)
    if apart:
        stages = predict.greedy(lambda *a: loss(torch.cat(a).flatten()), shapes=[(1, 1)] * size)
        assert [s.product for s in stages] == [s.coordinate for s in expected]
        assert [s.left for s in stages] == [s.left for s in expected]
    else:
        stages = predict.greedy(lambda a: loss(a.diagonal()), shapes=[(size, size)])
        assert stages.mixing == "tracked"
    assert [s.time for s in stages] == pytest.approx([s.time for s in expected], rel=1e-6)
    assert [s.runner_up for s in stages] == pytest.approx([s.runner_up for s in expected], rel=1e-6)
    assert [len(s.left) for s in stages] == [len(s.left) for s in expected]
    for ours, theirs in zip(stages, expected, strict=True):
        diagonal = torch.cat([part.diagonal() for part in ours.points])
        torch.testing.assert_close(diagonal, theirs.point, rtol=0, atol=1e-6)
    assert stages.ending == expected.ending


@pytest.mark.parametrize("network", [predict.full_head(3, 4, 40), predict.matrix_sensing(3, samples=40)])
def test_krylov_spaces_find_the_stages_that_eigenvectors_find(network, monkeypatch):
    expected = predict.greedy(network, max_stages=3)
    monkeypatch.setattr(active, "_DENSE", 0)
    stages = predict.greedy(network, max_stages=3)
    assert [s.time for s in stages] == pytest.approx([s.time for s in expected], rel=1e-9)


def test_blocks_of_one_product_are_products_of_their_own():
    """A block mixes within itself and with no other; each square block has a sign of its own."""
    first = predict.matrix_sensing(2, samples=30, seed=1)
    second = predict.matrix_sensing(2, samples=30, seed=4)
    apart = predict.greedy(lambda a, b: first(a) + second(b), shapes=[(2, 2), (2, 2)])
    left, right = orthogonal(8, 4), orthogonal(9, 4)

    def whole(a):
        turned = left.T @ a @ right
        return first(turned[:2, :2]) + second(turned[2:, 2:])

    together = predict.greedy(whole, shapes=[(4, 4)])
    assert together.mixing == "tracked"
    assert [s.time for s in together] == pytest.approx([s.time for s in apart], rel=1e-7)


def test_the_sign_of_the_last_exponent_decides_a_square_product():
    """2 x 2 sensing: where the orientation flips, the last direction has to come back from minus b."""
    flipped = 0
    for seed in range(8):
        network = predict.matrix_sensing(2, samples=12, seed=seed)
        stages = predict.greedy(network)
        at_zero = gradients(network, [torch.zeros(2, 2, dtype=torch.float64)])[0]
        first, second = torch.linalg.svdvals(at_zero).tolist()
        rest, slope = stages[0].points[0], gradients(network, stages[0].points)[0]
        sign = float(torch.linalg.det(-at_zero).sign() * torch.linalg.det(rest - slope).sign())
        rate = float(torch.linalg.svdvals(slope)[0])
        expected = 1 / first + (1 - sign * second / first) / rate
        assert stages[1].time == pytest.approx(expected, rel=1e-6)
        flipped += sign < 0
    assert 0 < flipped < 8


@settings(max_examples=5, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([(2, 2), (3, 3), (2, 4), (4, 2)]))
def test_times_do_not_depend_on_the_basis_of_the_data(seed, shape):
    network = predict.matrix_sensing(*shape, samples=30, seed=seed)
    left, right = orthogonal(seed + 1, shape[0]), orthogonal(seed + 2, shape[1])
    plain = predict.greedy(network, shapes=[shape], max_stages=3)
    turned = predict.greedy(lambda a: network(left @ a @ right.T), shapes=[shape], max_stages=3)
    assert [s.time for s in turned] == pytest.approx([s.time for s in plain], rel=1e-6)
    torch.testing.assert_close(left @ turned[-1].points[0] @ right.T, plain[-1].points[0], rtol=0, atol=1e-6)


def test_a_direction_that_moves_into_another_block_ends_the_prediction():
    """Labels that few samples give put directions into blocks, which a transition then mixes."""
    loss = predict.full_head(dimension=7, tokens=2, samples=5, seed=0, objective="hard-cross-entropy")
    stages = predict.greedy(loss, until=2)
    assert stages.ending in ("assumption fails", "not converged")  # processors round in other ways
