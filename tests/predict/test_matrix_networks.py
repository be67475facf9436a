"""Networks with full matrices: derivatives against autograd, data and teachers."""

import pytest
import torch

from rankrise import RankriseError, predict

NETWORKS = [
    predict.full_head(3, 4, 7),
    predict.full_head(2, 3, 6, heads=2, objective="cross-entropy", teacher="full"),
    predict.full_head(2, 3, 6, heads=2, objective="hard-cross-entropy"),
    predict.matrix_sensing(3, 2, samples=9),
    predict.linear_network(3, 2, samples=9),
]


def draw(shapes, seed):
    source = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=source, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("network", NETWORKS)
def test_derivatives_in_closed_form_are_those_of_autograd(network):
    products = tuple(product.requires_grad_() for product in draw(network.shapes, 1))
    directions = tuple(draw(network.shapes, 2))
    value, gradients = network.value_and_gradient(*products)
    assert float(value) == pytest.approx(float(network(*products).detach()), rel=1e-12)
    expected = torch.autograd.grad(network(*products), products, create_graph=True)
    torch.testing.assert_close(list(gradients), [g.detach() for g in expected])
    along = sum((g * d).sum() for g, d in zip(expected, directions, strict=True))
    second = torch.cat([part.flatten() for part in torch.autograd.grad(along, products)])
    flat = torch.cat([direction.flatten() for direction in directions])
    torch.testing.assert_close(network.hessian(*products) @ flat, second)
    if hasattr(network, "hessian_product"):
        found = network.hessian_product(*products)(*directions)
        torch.testing.assert_close(torch.cat([part.flatten() for part in found]), second)


def test_a_full_head_at_diagonal_products_is_the_diagonal_head():
    full, diagonal = predict.full_head(3, 4, 10, seed=5), predict.diagonal_head(3, 4, 10, seed=5)
    a = torch.linspace(-1, 1, 6, dtype=torch.float64)
    assert float(full(*map(torch.diag, a.chunk(2)))) == pytest.approx(float(diagonal(a)), rel=1e-12)


@pytest.mark.parametrize("network", NETWORKS)
def test_teachers_are_minimisers_and_products_have_names(network):
    if getattr(network, "objective", "squared") != "hard-cross-entropy":
        _, gradients = network.value_and_gradient(
            *(network.teacher if len(network.shapes) > 1 else [network.teacher])
        )
        assert max(float(gradient.abs().max()) for gradient in gradients) < 1e-12
    labels = [network.label(product) for product in range(len(network.shapes))]
    assert len(set(labels)) == len(labels)


def test_white_inputs_do_not_mix_and_others_do():
    for white, mixing in ((True, "tracked"), (False, "ordered")):
        stages = predict.greedy_matrices(predict.linear_network(3, samples=30, white=white), max_stages=1)
        assert stages.mixing == mixing


def test_sizes_are_checked():
    with pytest.raises(RankriseError, match="rank=5 is above 3"):
        predict.matrix_sensing(3, 4, rank=5)
    with pytest.raises(RankriseError, match="teacher='some'"):
        predict.full_head(teacher="some")
    with pytest.raises(RankriseError, match="product=2"):
        predict.full_head(2, 2, 2).label(2)
