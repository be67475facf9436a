"""The networks against Eq. 1 and Example 3.2 written out, against autograd, and against closed forms."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from rankrise.predict import (
    diagonal_head,
    diagonal_transformer,
    full_head,
    linear_network,
    matrix_sensing,
    random_start,
)
from rankrise.predict._loss import checked_loss
from rankrise.predict.types import DiagonalTransformer

OBJECTIVES = ("squared", "cross-entropy", "hard-cross-entropy")
BUILDERS = {
    "head": lambda **settings: diagonal_head(4, 3, 7, **settings),
    "transformer": lambda **settings: diagonal_transformer(3, 2, 2, 3, 4, **settings),
    "linear": lambda **settings: linear_network(5, samples=9, diagonal=True, **settings),
}

sizes = st.integers(1, 5)
seeds = st.integers(0, 10_000)
every_network = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
every_objective = pytest.mark.parametrize("objective", OBJECTIVES)


def point(size: int, seed: int = 0, scale: float = 0.7) -> Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@settings(max_examples=20, deadline=None)
@given(sizes, sizes, sizes, seeds, st.sampled_from(OBJECTIVES))
def test_head_is_equation_1(dimension, tokens, samples, seed, objective):
    """By torch's own attention and losses."""
    network = diagonal_head(dimension, tokens, samples, seed, objective)
    a = point(network.size, seed)
    x, targets = network.inputs, network.targets.flatten(0, 1)
    mixed = nn.functional.scaled_dot_product_attention(x * a[:dimension], x, x, scale=1.0)
    outputs = (mixed * a[dimension:]).flatten(0, 1)
    if objective == "squared":
        total = nn.functional.mse_loss(outputs, targets, reduction="sum") / 2
    else:
        total = nn.functional.cross_entropy(outputs, targets, reduction="sum")
    torch.testing.assert_close(network(a), total / samples, rtol=1e-12, atol=1e-14)


@settings(max_examples=15, deadline=None)
@given(sizes, sizes, st.integers(1, 12), seeds, st.sampled_from(OBJECTIVES))
def test_derivatives_of_head_at_every_size(dimension, tokens, samples, seed, objective):
    network = diagonal_head(dimension, tokens, samples, seed, objective)
    a = point(network.size, seed)
    loss, gradient = network.value_and_gradient(a)
    torch.testing.assert_close(loss, network(a), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, torch.func.grad(network)(a), rtol=1e-10, atol=1e-11)
    torch.testing.assert_close(network.hessian(a), torch.func.hessian(network)(a), rtol=1e-10, atol=1e-11)


@every_objective
def test_derivatives_of_head_do_not_depend_on_chunks(objective):
    # 230 samples of 10 x 50 are two chunks of the gradient and six of the Hessian, the last ones shorter.
    network = diagonal_head(samples=230, objective=objective)
    a = 0.5 * network.teacher
    torch.testing.assert_close(network.value_and_gradient(a)[0], network(a))
    gradient = torch.func.grad(network)
    torch.testing.assert_close(network.value_and_gradient(a)[1], gradient(a))
    direction = point(network.size)
    torch.testing.assert_close(
        network.hessian(a) @ direction, torch.func.jvp(gradient, (a,), (direction,))[1]
    )


@pytest.mark.parametrize("support", [[1, 5, 9], [0, 1], [12, 15]])
def test_restricted_head_is_the_head_with_zeros(support):
    network = diagonal_head(8, 5, 60)
    support = torch.tensor(support)
    few = point(network.size)[support]
    part = network.restricted(support)
    whole = torch.zeros(network.size, dtype=torch.float64).index_put((support,), few)
    value, gradient = network.value_and_gradient(whole)
    part_value, part_gradient = part.value_and_gradient(few)
    torch.testing.assert_close(part_value, value)
    torch.testing.assert_close(part(few), value)
    torch.testing.assert_close(part_gradient, gradient[support])
    torch.testing.assert_close(part.hessian(few), network.hessian(whole)[support][:, support])


def transformer_with_full_matrices(network: DiagonalTransformer, u: Tensor, v: Tensor) -> Tensor:
    """Example 3.2, head by head with d x d weight matrices, from u = [w_K, w_V] and v = [w_Q, w_O]."""
    dimension = network.inputs.shape[-1]
    first, second = u.split(dimension), v.split(dimension)
    activate = torch.nn.GELU()
    outputs = []
    for state in network.inputs:
        blocks = iter(zip(first, second, strict=True))
        for layer in range(network.layers):
            added = torch.zeros_like(state)
            for _ in range(network.heads):
                key, query = map(torch.diag, next(blocks))
                value, output = map(torch.diag, next(blocks))
                weights = torch.softmax(state @ key @ query.T @ state.T, dim=1)
                added = added + weights @ state @ value @ output.T
            state = state + added
            state = state + activate(state @ network.feed_in[layer]) @ network.feed_out[layer].T
        outputs.append(state)
    return torch.stack(outputs)


@settings(max_examples=20, deadline=None)
@given(sizes, st.integers(1, 3), st.integers(1, 3), sizes, seeds)
def test_transformer_is_example_3_2(dimension, layers, heads, tokens, seed):
    network = diagonal_transformer(dimension, layers, heads, tokens, samples=2, seed=seed)
    assert network.size == 2 * dimension * heads * layers
    u, v = random_start(network.size, seed)
    outputs = transformer_with_full_matrices(network, u, v)
    expected = (outputs - network.targets).square().sum() / 4
    torch.testing.assert_close(network(u * v), expected, rtol=1e-9, atol=1e-12)


@every_network
def test_teacher_fits_its_targets(build):
    squared = build(objective="squared")
    assert 0 <= float(squared(squared.teacher)) < 1e-25
    assert torch.func.grad(squared)(squared.teacher).abs().max() < 1e-12

    soft = build(objective="cross-entropy")
    assert torch.func.grad(soft)(soft.teacher).abs().max() < 1e-12
    assert torch.linalg.eigvalsh(torch.func.hessian(soft)(soft.teacher)).min() > -1e-12


NETWORKS = [
    *(build(objective=objective) for build in BUILDERS.values() for objective in OBJECTIVES),
    full_head(3, 4, 7),
    full_head(2, 3, 6, objective="cross-entropy", teacher="full"),
    full_head(2, 3, 6, objective="hard-cross-entropy"),
    matrix_sensing(3, 2, samples=9),
    linear_network(3, 2, samples=9),
]


@pytest.mark.parametrize("network", NETWORKS)
def test_derivatives_are_those_of_autograd(network):
    sizes = {name: getattr(network, name, None) for name in ("size", "shapes")}
    loss, plain = checked_loss(network), checked_loss(lambda *a: network(*a), **sizes)
    at, direction = point(loss.size, 1), point(loss.size, 2)
    torch.testing.assert_close(loss.value_and_gradient(at), plain.value_and_gradient(at))
    torch.testing.assert_close(loss.hessian(at), plain.hessian(at))
    torch.testing.assert_close(loss.hessian_product(at)(direction), loss.hessian(at) @ direction)


def test_a_full_head_at_diagonal_products_is_the_diagonal_head():
    full, diagonal = full_head(3, 4, 10, seed=5), diagonal_head(3, 4, 10, seed=5)
    a = torch.linspace(-1, 1, 6, dtype=torch.float64)
    assert float(full(*map(torch.diag, a.chunk(2)))) == pytest.approx(float(diagonal(a)), rel=1e-12)
