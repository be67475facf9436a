"""Algorithm 1 against closed forms, a slow independent version, and the flow that it is the limit of."""

import json
import math

import pytest
import torch
from small_losses import double, double_well, leaving_loss, quadratic

from rankrise import predict
from rankrise.foundations.files import to_json


def slope(loss, a):
    a = a.detach().requires_grad_()
    return torch.autograd.grad(loss(a), a)[0]


def slow_greedy(loss, size, stages):
    """Algorithm 1 by small explicit steps of the flow on u, v with u^2 = v^2: no Hessian, no Newton."""
    b, time = torch.ones(size, dtype=torch.float64), 0.0
    point, found = torch.zeros(size, dtype=torch.float64), []
    for _ in range(stages):
        g = -slope(loss, point)
        waits = [
            math.inf if point[i] != 0 or g[i] == 0 else float((b[i] - 1 + g[i].sign()) / g[i])
            for i in range(size)
        ]
        winner = min(range(size), key=waits.__getitem__)
        if waits[winner] == math.inf:
            break
        time += waits[winner]
        b = torch.where(point == 0, b - g * waits[winner], b)
        logs = torch.where(point == 0, -math.inf, point.abs().log())
        signs = point.sign()
        logs[winner], signs[winner] = math.log(1e-5), g[winner].sign()
        for _ in range(2000):
            logs = logs + 0.1 * 2 * signs * -slope(loss, signs * logs.exp())
        point = torch.where(logs < -12, 0.0, signs * logs.exp())
        found.append((time, winner, point))
    return found


def test_a_coordinate_can_leave_the_support_and_come_back_with_the_other_sign():
    loss = leaving_loss
    stages = predict.greedy(loss, 3)
    assert [s.coordinate for s in stages] == [2, 0, 1, 2]
    assert [s.left for s in stages] == [(), (), (2,), ()]
    assert [s.sign for s in stages] == [1, 1, 1, -1]
    assert float(stages[2].point[2]) == 0.0
    # it left at b = 0 and has to cross to 2: a wait of 2/|g|
    force = float(torch.func.grad(loss)(stages[2].point)[2].abs())
    assert stages[3].time - stages[2].time == pytest.approx(2 / force)

    flow = predict.gradient_flow(
        loss, double(1, 0.8, 0.5), double(0.3, 0.2, 1.2), -300, until=1.2 * stages[3].time
    )
    crossings = [(c.product, c.upward) for c in flow.crossings()]
    assert crossings == [(2, True), (0, True), (1, True), (2, False), (2, True)]
    assert (flow.values[-1] - stages[3].point).abs().max() < 1e-3
    assert predict.compare(stages, flow).largest_time_error < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("loss", [leaving_loss, predict.diagonal_head(dimension=2, tokens=3, samples=20)])
def test_agrees_with_small_explicit_steps(loss):
    size = getattr(loss, "size", 3)
    stages = predict.greedy(loss, size, max_stages=4)
    slow = slow_greedy(loss, size, len(stages))
    assert len(slow) == len(stages) >= 3
    for stage, (time, winner, point) in zip(stages, slow, strict=True):
        assert stage.coordinate == winner
        assert stage.time == pytest.approx(time, rel=1e-3)
        torch.testing.assert_close(stage.point, point, rtol=1e-3, atol=1e-4)


def test_the_limit_is_the_one_that_the_flow_reaches_not_the_deepest():
    """A double well: from 0 the flow stops in the first well, although a deeper one lies behind."""
    loss, point = double_well, predict.greedy(double_well, 1)[0].point
    assert 0 < float(point[0]) < 1.5
    assert float(loss(double(4.0))) < float(loss(point))
    flow = predict.gradient_flow(loss, double(1.0), double(0.5), -32, until=3.0)
    assert float(flow.values[-1][0]) == pytest.approx(float(point[0]), rel=1e-4)


def test_ties_are_reported_not_hidden():
    tied = quadratic(double(1.0, -1.0, 0.5))
    stages = predict.greedy(tied, 3)
    assert stages[0].tied == (1,)
    assert stages[0].runner_up == stages[0].time
    assert not predict.check_assumptions(tied, stages)["nondegeneracy"].holds


def tail(a):
    """Its first coordinate has a minimum; the second one's loss falls for ever."""
    return ((a[0] - 2) ** 2) / 2 + torch.nn.functional.softplus(-a[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "sizes", "ending", "count"),
    [
        (tail, {"size": 2}, "not converged", 1),
        (lambda a: torch.nn.functional.softplus(-a.sum()), {"shapes": [(2, 2)]}, "not converged", 0),
        (lambda a: (a**4).sum(), {"size": 2}, "flat at zero", 0),
        (lambda a, b: ((a @ b).trace() - 1) ** 2, {"shapes": [(2, 2), (2, 2)]}, "flat at zero", 0),
    ],
)
def test_an_end_keeps_what_was_found_and_says_why(loss, sizes, ending, count):
    stages = predict.greedy(loss, **sizes)
    assert (stages.ending, len(stages)) == (ending, count)


def test_stages_survive_strict_json():
    """The last stage has no runner-up: inf, which JSON has no number for."""
    stages = predict.greedy(leaving_loss, 3)
    record = json.loads(to_json(stages.to_dict("abc".__getitem__)))
    assert [row["label"] for row in record["stages"]] == ["c", "a", "b", "c"]
    again = predict.Stages.from_dict(record, torch.stack([stage.point for stage in stages]))
    assert (again.ending, again.initial_loss) == (stages.ending, stages.initial_loss)
    for one, other in zip(stages, again, strict=True):
        for name in ("time", "coordinate", "sign", "loss", "left", "runner_up", "tied"):
            assert getattr(one, name) == getattr(other, name)
        assert torch.equal(one.point, other.point)
