"""The parts of the flow of full matrices against closed forms: columns, exponentials, orders of the steps."""

import math

import pytest
import torch
from small_losses import gaussian

from rankrise import predict
from rankrise.predict._loss import checked_loss
from rankrise.predict._matrices.active import FactorSpace, Linearised, phis
from rankrise.predict._matrices.columns import GAUSS, advance, exponential


def off_diagonal(gradient):
    rows, columns = gradient.shape
    zero = gradient.new_zeros
    upper = torch.cat([zero(rows, rows), -gradient], 1)
    return torch.cat([upper, torch.cat([-gradient.T, zero(columns, columns)], 1)])


@pytest.mark.parametrize("z", [-40.0, -1.0, -0.3, 0.0, 1e-9, 0.7, 3.0])
def test_phi_functions_are_their_integrals(z):
    """`phi_k(z) = int_0^1 exp((1 - x) z) x^(k-1)/(k-1)! dx`, by Simpson's rule."""
    x = torch.linspace(0, 1, 20_001, dtype=torch.float64)
    weights = torch.ones_like(x)
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    for k, value in enumerate(phis(torch.tensor([z], dtype=torch.float64))[1:], start=1):
        integrand = ((1 - x) * z).exp() * x ** (k - 1) / math.factorial(k - 1)
        expected = float((weights * integrand).sum()) / 3 / 20_000
        assert float(value[0]) == pytest.approx(expected, rel=1e-10)


def test_exponentials_are_those_of_the_whole_matrix():
    gradient, columns = gaussian(6, 2, 3), gaussian(7, 5, 4)
    expected = torch.linalg.matrix_exp(off_diagonal(gradient)) @ columns
    torch.testing.assert_close(exponential(columns, 2, gradient), expected)


def slope(errors):
    return math.log2(errors[0] / errors[1])


def test_columns_under_a_changing_gradient_are_of_order_four():
    first, second, columns = gaussian(8, 2, 2), gaussian(9, 2, 2), gaussian(10, 4, 3)

    def solve(count):
        moved, part = columns, 1 / count
        for number in range(count):
            early, late = (first + math.sin((number + gauss) * part) * second for gauss in GAUSS)
            moved = advance(moved, 2, early, late, part)
        return moved

    exact = solve(512)
    assert slope([float((solve(count) - exact).norm()) for count in (16, 32)]) == pytest.approx(4, abs=0.2)


def test_steps_of_the_active_factors_are_of_order_four():
    network = predict.full_head(2, 3, 20)
    space = FactorSpace(checked_loss(network), (1, 2))
    start = 0.5 * gaussian(11, space.size)

    def solve(count):
        x = start
        for _ in range(count):
            x = Linearised(space, space.here(x)).step(2.0 / count, 1e-6).end
        return x

    exact = solve(256)
    assert slope([float((solve(count) - exact).norm()) for count in (8, 16)]) == pytest.approx(4, abs=0.6)
