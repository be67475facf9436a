"""The assumptions of Theorem 4.5: where they hold, and losses that break each of them."""

import math

import pytest
import torch

from rankrise import RankriseError, predict
from rankrise.predict.types import Stage


def double(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_assumptions_hold_on_the_toy(head, stages):
    check = predict.check_assumptions(head, stages, trials=1)
    assert check.hold
    assert len(check.strict_minima.margins) == len(stages)
    # the margin of strict minima, from the second derivative of L(u, s u) itself
    stage = stages[4]
    support, signs = list(stage.support), stage.point[list(stage.support)].sign()

    def of_weights(u):
        return head(
            torch.zeros(head.size, dtype=torch.float64).index_put((torch.tensor(support),), signs * u * u)
        )

    exact = torch.func.hessian(of_weights)(stage.point[support].abs().sqrt())
    assert check.strict_minima.margins[4] == pytest.approx(float(torch.linalg.eigvalsh(exact)[0]), rel=1e-6)


def test_a_flat_direction_breaks_strict_minima():
    """`L` depends on a_0 + a_1 only once both are active: a valley, not a minimum."""
    point = Stage(1.0, 0, 1, 0.0, double(0.5, 0.5), (), math.inf, ())
    stages = predict.Stages((point,), 0.5, "nothing moves", "")
    check = predict.check_assumptions(lambda a: (a.sum() - 1) ** 2 / 2, stages)
    assert check.strict_minima.margin == pytest.approx(0.0, abs=1e-12)
    assert not check.hold


def test_a_double_well_breaks_noise_robustness():
    """Beside a shallow minimum a barrier: noise of 0.01 on the weights returns, noise of 1 does not."""

    def loss(a):
        return (-2 * a + 1.5 * a**2 - 0.05 * a**5).sum() + 0.004 * (a**6).sum() + ((a - 0.5) ** 2)[1] * 3

    stages = predict.greedy(loss, 2)
    assert predict.check_assumptions(loss, stages, noise=0.01).noise_robustness.holds
    assert not predict.check_assumptions(loss, stages, noise=2.0, trials=8).noise_robustness.holds


def test_stages_of_another_loss_are_refused(stages):
    with pytest.raises(RankriseError, match=r"stages have 16 coordinates and the loss has 4: .*\.$"):
        predict.check_assumptions(predict.diagonal_head(2, 3, 4), stages)


def test_the_old_spelling_with_a_size_warns(head, stages):
    with pytest.warns(DeprecationWarning, match=r"is now check_assumptions\(loss, stages\)"):
        old = predict.check_assumptions(head, head.size, stages, trials=1)
    assert old == predict.check_assumptions(head, stages, trials=1)
