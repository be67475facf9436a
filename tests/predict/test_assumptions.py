"""The assumptions behind the stages: where they hold, losses that break each, and noise on a flow."""

import pytest
import torch
from small_losses import double, double_well, quadratic

from rankrise import predict


def test_assumptions_hold_on_the_toy(head, stages):
    check = predict.check_assumptions(head, stages, trials=1)
    assert check.hold
    assert set(check) == {"nondegeneracy", "strict_minima", "noise_robustness"}
    assert len(check["strict_minima"].margins) == len(stages)
    # The margin of strict minima, from the second derivative of L(u, s u) itself.
    stage = stages[4]
    support, signs = list(stage.support), stage.point[list(stage.support)].sign()

    def of_weights(u):
        zero = torch.zeros(head.size, dtype=torch.float64)
        return head(zero.index_put((torch.tensor(support),), signs * u * u))

    exact = torch.func.hessian(of_weights)(stage.point[support].abs().sqrt())
    assert check["strict_minima"].margins[4] == pytest.approx(
        float(torch.linalg.eigvalsh(exact)[0]), rel=1e-6
    )


def test_a_double_well_breaks_noise_robustness():
    """Beside a shallow minimum a barrier: noise of 0.01 on the weights returns, noise of 1 does not."""

    def loss(a):
        return double_well(a) + ((a - 0.5) ** 2)[1] * 3

    stages = predict.greedy(loss, 2)
    assert predict.check_assumptions(loss, stages, noise=0.01)["noise_robustness"].holds
    assert not predict.check_assumptions(loss, stages, noise=2.0, trials=8)["noise_robustness"].holds


def test_assumptions_of_matrices_have_their_numbers():
    network = predict.matrix_sensing(2, samples=30, seed=2)
    stages = predict.greedy(network)
    check = predict.check_assumptions(network, stages)
    assert check.hold
    _, (slope,) = network.value_and_gradient(torch.zeros(2, 2, dtype=torch.float64))
    assert check["gradient_at_zero"].margin == pytest.approx(float(torch.linalg.svdvals(slope)[0]))
    assert check["nondegeneracy"].margins == tuple(stage.gap / stage.time for stage in stages)
    assert "noise_robustness" not in check


def test_curvature_modulo_gauge_in_closed_form():
    """`L = |A - S|^2/2` at rank 1: eigenvalues in (u, v) are s_1 -+ s_i, 2 s_1, and 0 for the gauge."""
    target = torch.diag(double(3.0, 1.0))
    loss = quadratic(target)
    check = predict.check_assumptions(loss, predict.greedy(loss, shapes=[(2, 2)], max_stages=1))
    assert check["strict_minima"].margin == pytest.approx(2.0, rel=1e-9)


@pytest.fixture(scope="module")
def flow(head):
    return predict.gradient_flow(head, *predict.random_start(head), -32, until=3.0)


def test_noise_on_a_plateau_dies_out(head, flow):
    for time in (0.7, 2.7):
        before, after = predict.perturb(head, flow, time, noise=0.05, duration=20)
        last = float(after.times[-1])
        kick, rest = ((before.at(at) - after.at(at)).abs().max() for at in (0.0, last))
        assert kick > 0.01
        assert rest < 0.05 * kick
        torch.testing.assert_close(before.at(0.0), flow.at(time), rtol=1e-9, atol=1e-12)
