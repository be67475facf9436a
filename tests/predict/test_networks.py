"""The networks against Eq. 1 and Example 3.2 written out, against autograd, and against closed forms."""

import math
from dataclasses import replace

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rankrise.foundations.errors import RankriseError
from rankrise.predict import diagonal_head, diagonal_linear, diagonal_transformer, random_initialisation
from rankrise.predict.types import DiagonalHead, DiagonalLinear, DiagonalTransformer

OBJECTIVES = ("squared", "cross-entropy", "hard-cross-entropy")
BUILDERS = {
    "head": lambda **settings: diagonal_head(4, 3, 7, **settings),
    "transformer": lambda **settings: diagonal_transformer(3, 2, 2, 3, 4, width=5, **settings),
    "linear": lambda **settings: diagonal_linear(5, 9, **settings),
    "orthogonal": lambda **settings: diagonal_linear(5, 9, orthogonal=True, **settings),
}

sizes = st.integers(1, 5)
seeds = st.integers(0, 10_000)
every_network = pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS.keys())
every_objective = pytest.mark.parametrize("objective", OBJECTIVES)


def point(size: int, seed: int = 0, scale: float = 0.7) -> Tensor:
    return scale * torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def looped_head(
    tokens: list[list[float]], key_query: list[float], value_output: list[float]
) -> list[list[float]]:
    """Eq. 1 for one sample, a number at a time."""
    dimensions = range(len(key_query))
    outputs = []
    for query in tokens:
        scores = [sum(query[k] * key_query[k] * token[k] for k in dimensions) for token in tokens]
        powers = [math.exp(score - max(scores)) for score in scores]
        weights = [power / sum(powers) for power in powers]
        mixed = [
            sum(weight * token[k] for weight, token in zip(weights, tokens, strict=True)) for k in dimensions
        ]
        outputs.append([mixed[k] * value_output[k] for k in dimensions])
    return outputs


def looped_loss(outputs: list[list[float]], targets: list[list[float]], objective: str) -> float:
    """The loss of one sample."""
    total = 0.0
    for output, target in zip(outputs, targets, strict=True):
        if objective == "squared":
            total += sum((o - t) ** 2 for o, t in zip(output, target, strict=True)) / 2
        else:
            partition = math.log(sum(map(math.exp, output)))
            total += sum(t * (partition - o) for o, t in zip(output, target, strict=True))
    return total


@settings(max_examples=40, deadline=None)
@given(sizes, sizes, sizes, seeds, st.sampled_from(OBJECTIVES))
def test_head_is_equation_1(dimension, tokens, samples, seed, objective):
    network = diagonal_head(dimension, tokens, samples, seed, objective)
    a = point(network.size, seed)
    key_query, value_output = a[:dimension].tolist(), a[dimension:].tolist()
    losses = [
        looped_loss(looped_head(sample, key_query, value_output), targets, objective)
        for sample, targets in zip(network.inputs.tolist(), network.targets.tolist(), strict=True)
    ]
    assert float(network(a)) == pytest.approx(sum(losses) / samples, rel=1e-12, abs=1e-14)


@settings(max_examples=30, deadline=None)
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


@every_network
@every_objective
def test_gradient_and_hessian_are_those_of_autograd(build, objective):
    network = build(objective=objective)
    a = point(network.size)
    loss, gradient = network.value_and_gradient(a)
    assert loss.shape == ()
    assert not loss.requires_grad
    assert not gradient.requires_grad
    torch.testing.assert_close(loss, network(a))
    torch.testing.assert_close(gradient, torch.func.grad(network)(a))
    if hasattr(network, "hessian"):
        torch.testing.assert_close(network.hessian(a), torch.func.hessian(network)(a))


@every_network
@every_objective
def test_gradient_and_hessian_are_limits_of_differences(build, objective):
    network, step = build(objective=objective), 1e-5
    a = point(network.size)
    shifts = step * torch.eye(network.size, dtype=torch.float64)
    slopes = torch.stack([network(a + shift) - network(a - shift) for shift in shifts]) / (2 * step)
    torch.testing.assert_close(network.value_and_gradient(a)[1], slopes, rtol=1e-6, atol=1e-7)
    if hasattr(network, "hessian"):
        rows = [
            (network.value_and_gradient(a + shift)[1] - network.value_and_gradient(a - shift)[1]) / (2 * step)
            for shift in shifts
        ]
        torch.testing.assert_close(network.hessian(a), torch.stack(rows), rtol=1e-6, atol=1e-7)


@every_objective
def test_curvature_is_the_hessian_to_six_digits(objective):
    network = diagonal_head(8, 5, 60, objective=objective)
    a = point(network.size)
    exact = network.hessian(a)
    assert (network.curvature(a) - exact).norm() < 1e-5 * exact.norm()


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


def test_head_with_saturated_attention_stays_finite():
    network = diagonal_head(4, 3, 7)
    a = torch.cat([torch.full((4,), 1e3), torch.ones(4)]).double()
    loss, gradient = network.value_and_gradient(a)
    assert loss.isfinite()
    assert gradient.isfinite().all()
    assert network.hessian(a).isfinite().all()


def transformer_with_full_matrices(network: DiagonalTransformer, u: Tensor, v: Tensor) -> Tensor:
    """Example 3.2, head by head with d x d weight matrices, from u = [w_K, w_V] and v = [w_Q, w_O]."""
    dimension = network.inputs.shape[-1]
    first, second = u.split(dimension), v.split(dimension)
    activate = {"gelu": torch.nn.GELU(), "tanh": torch.tanh}[network.activation]
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


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
@settings(max_examples=20, deadline=None)
@given(sizes, st.integers(1, 3), st.integers(1, 3), sizes, seeds)
def test_transformer_is_example_3_2(activation, dimension, layers, heads, tokens, seed):
    network = diagonal_transformer(
        dimension, layers, heads, tokens, samples=2, seed=seed, activation=activation, width=4
    )
    assert network.size == 2 * dimension * heads * layers
    u, v = random_initialisation(network.size, seed)
    outputs = transformer_with_full_matrices(network, u, v)
    expected = (outputs - network.targets).square().sum() / 4
    torch.testing.assert_close(network(u * v), expected, rtol=1e-9, atol=1e-12)


def test_transformer_of_one_head_adds_the_head_to_its_inputs():
    head = diagonal_head(4, 3, 6)
    nothing = torch.zeros(1, 4, 2, dtype=torch.float64)
    network = DiagonalTransformer(head.inputs, head.inputs + head.targets, nothing, nothing, heads=1)
    a = point(head.size)
    torch.testing.assert_close(network(a), head(a))
    assert [network.place(i) for i in range(8)] == [head.place(i) for i in range(8)]


def test_second_derivatives_of_transformer_reach_every_layer():
    network = diagonal_transformer(2, 2, 2, 3, 4)
    hessian = torch.func.hessian(network)(point(network.size))
    torch.testing.assert_close(hessian, hessian.T)
    assert hessian[:8, 8:].abs().max() > 1e-6


@given(sizes, st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=20, deadline=None)
def test_places_are_the_order_of_the_paper(dimension, layers, heads):
    network = diagonal_transformer(dimension, layers, heads, tokens=1, samples=1)
    expected = [
        (layer, head, kind, entry)
        for layer in range(layers)
        for head in range(heads)
        for kind in ("KQ", "VO")
        for entry in range(dimension)
    ]
    assert [network.place(i) for i in range(network.size)] == expected
    assert len({network.label(i) for i in range(network.size)}) == network.size


def test_labels():
    assert diagonal_head(8, 2, 2).label(15) == "VO 7"
    assert diagonal_transformer(5, 2, 3, 2, 2).label(33) == "layer 2 head 1 KQ 3"
    assert diagonal_linear(8, 2).label(7) == "input 7"


@every_network
@every_objective
def test_a_seed_fixes_the_data(build, objective):
    first, again, other = (build(objective=objective, seed=seed) for seed in (3, 3, 4))
    for name in ("inputs", "targets", "teacher"):
        assert torch.equal(getattr(first, name), getattr(again, name))
    assert not torch.equal(first.inputs, other.inputs)
    assert not torch.equal(first.teacher, other.teacher)


@every_network
def test_teacher_fits_its_targets(build):
    squared = build(objective="squared")
    assert 0 <= float(squared(squared.teacher)) < 1e-25
    assert squared.value_and_gradient(squared.teacher)[1].abs().max() < 1e-12

    soft = build(objective="cross-entropy")
    _, gradient = soft.value_and_gradient(soft.teacher)
    assert gradient.abs().max() < 1e-12
    assert torch.linalg.eigvalsh(torch.func.hessian(soft)(soft.teacher)).min() > -1e-12


@pytest.mark.parametrize("name", ["head", "linear"])
def test_hard_targets_have_no_minimiser_where_they_are_fitted(name):
    network = BUILDERS[name](objective="hard-cross-entropy")
    size = network.size
    # Attention stays as it is; the outputs grow. The teacher's own labels are then fitted better and better.
    grown = torch.ones(size, dtype=torch.float64)
    grown[size // 2 if name == "head" else 0 :] = 2.0
    losses = [float(network(network.teacher * grown**power)) for power in range(1, 9)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.1 * losses[0]


def test_random_teacher_has_gaussian_factors():
    # Products of two standard Gaussians: mean 0, variance 1, mean fourth power 9.
    teacher = torch.cat([diagonal_head(50, 1, 1, seed).teacher for seed in range(300)])
    assert abs(float(teacher.mean())) < 0.03
    assert float(teacher.square().mean()) == pytest.approx(1, abs=0.05)
    assert float(teacher.pow(4).mean()) == pytest.approx(9, abs=2)


@given(sizes, st.integers(1, 12), seeds)
@settings(max_examples=30, deadline=None)
def test_linear_squared_error_is_that_of_its_outputs(dimension, samples, seed):
    network = diagonal_linear(dimension, samples, seed)
    noise = point(samples, seed)
    network = replace(network, targets=network.targets + noise)
    a = point(dimension, seed + 1)
    expected = (network.inputs @ a - network.targets).square().mean() / 2
    torch.testing.assert_close(network(a), expected, rtol=1e-10, atol=1e-12)


def test_orthogonal_inputs_part_the_coordinates():
    network = diagonal_linear(6, 40, orthogonal=True)
    gram = network.inputs.T @ network.inputs / 40
    torch.testing.assert_close(gram, torch.eye(6, dtype=torch.float64))
    a = point(6)
    torch.testing.assert_close(network(a), (a - network.teacher).square().sum() / 2)
    torch.testing.assert_close(network.value_and_gradient(a)[1], a - network.teacher)


def test_random_initialisation():
    u0, v0 = random_initialisation(2000, seed=5)
    assert torch.equal(u0, random_initialisation(2000, seed=5)[0])
    assert not torch.equal(u0, random_initialisation(2000, seed=6)[0])
    assert abs(float((u0 * v0).mean())) < 0.1
    assert float(u0.std()) == pytest.approx(1, abs=0.06)
    assert float(v0.std()) == pytest.approx(1, abs=0.06)


@pytest.mark.parametrize("kind", [list, numpy.array])
@pytest.mark.parametrize(
    "network", [diagonal_head(2, 3, 4), diagonal_linear(4, 9), diagonal_transformer(2, 1, 1)]
)
def test_arrays_and_lists_are_taken_wherever_tensors_are(network, kind):
    a = point(4)
    for function in (network, network.value_and_gradient, getattr(network, "hessian", network)):
        torch.testing.assert_close(function(kind(a.tolist())), function(a), rtol=0, atol=0)


def test_data_may_be_numpy():
    network = diagonal_head(2, 3, 4)
    same = DiagonalHead(network.inputs.numpy(), network.targets.tolist())
    assert torch.equal(same(network.teacher), network(network.teacher))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: diagonal_head(dimension=0), "dimension=0"),
        (lambda: diagonal_head(tokens=-1), "tokens=-1"),
        (lambda: diagonal_head(samples=2.5), "samples is 2.5"),
        (lambda: diagonal_head(objective="hinge"), "'hinge'"),
        (lambda: diagonal_transformer(layers=0), "layers=0"),
        (lambda: diagonal_transformer(heads=0), "heads=0"),
        (lambda: diagonal_transformer(width=0), "width=0"),
        (lambda: diagonal_transformer(activation="relu"), "'relu'"),
        (lambda: diagonal_linear(dimension=True), "dimension is True"),
        (lambda: diagonal_linear(8, 7, orthogonal=True), "samples=7"),
        (lambda: diagonal_linear(objective="mse"), "'mse'"),
        (lambda: random_initialisation(0), "size=0"),
        (lambda: diagonal_head(2, 2, 2).label(4), "coordinate=4"),
        (lambda: diagonal_head(2, 2, 2).place(-1), "coordinate=-1"),
        (lambda: diagonal_linear(2, 2).label(2), "coordinate=2"),
        (lambda: DiagonalHead(torch.zeros(1, 2, 3), torch.zeros(1, 2, 3)), "inputs are torch.float32"),
        (lambda: DiagonalHead(point(6).view(2, 3), point(6).view(2, 3)), "inputs have shape"),
        (lambda: DiagonalHead(point(6).view(1, 2, 3), point(3).view(1, 1, 3)), "targets have shape"),
        (lambda: DiagonalHead(point(6).view(1, 2, 3), point(6).view(1, 2, 3) / 0), "targets are"),
        (lambda: DiagonalLinear(point(6).view(2, 3), point(3)), "targets have shape"),
        (lambda: diagonal_head(2, 2, 2)(point(2)), "a has shape"),
        (lambda: diagonal_head(2, 2, 2).value_and_gradient(point(2)), "a has shape"),
        (lambda: diagonal_transformer(2, 2, 2, 2, 2)(point(2)), "a has shape"),
        (lambda: diagonal_linear(2, 2)(point(1)), "a has shape"),
    ],
)
def test_bad_input_gets_a_sentence(build, named):
    with pytest.raises(RankriseError, match=named) as caught:
        build()
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")
