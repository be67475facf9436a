"""Stages of full matrices held against flows, and what they assume."""

import itertools
import json

import pytest
import torch

from rankrise import RankriseError, predict
from rankrise.foundations.files import to_json


@pytest.fixture(scope="module")
def network():
    return predict.matrix_sensing(2, samples=30, seed=2)


@pytest.fixture(scope="module")
def stages(network):
    return predict.greedy_matrices(network)


@pytest.fixture(scope="module")
def flows(network, stages):
    start = predict.random_start(network.shapes, seed=3)
    return [predict.matrix_flow(network, start, scale, 1.2 * stages[-1].time) for scale in (-25, -50, -200)]


def test_errors_fall_like_one_over_the_logarithm(stages, flows):
    convergence = predict.compare_matrices(stages, flows)
    assert convergence.time_errors_fall
    assert convergence.time_exponent == pytest.approx(1, abs=0.02)
    assert convergence.largest_slope_error < 1e-4
    assert max(convergence.extrapolated_errors) < 1e-3
    assert all(one.rank_grows_by_at_most_one for one in convergence.comparisons)
    assert convergence.point_errors[-1] < 1e-6


def test_a_flow_that_ends_early_counts_the_stages_that_it_has(network, stages, flows):
    short = predict.matrix_flow(
        network, predict.random_start(network.shapes, seed=3), -50, stages[0].time * 2
    )
    rows = predict.compare_matrices(stages, short).stages
    assert len(rows) == sum((a.time + b.time) / 2 < short.times[-1] for a, b in itertools.pairwise(stages))
    assert [row.ranks for row in rows] == [(number,) for number in range(1, len(rows) + 1)]


def test_flows_of_another_loss_or_of_one_scale_are_refused(stages, flows):
    other = predict.matrix_sensing(3, samples=20)
    with pytest.raises(RankriseError, match="same loss"):
        predict.compare_matrices(predict.greedy_matrices(other, max_stages=1), flows[0])
    with pytest.raises(RankriseError, match="two different scales"):
        predict.compare_matrices(stages, flows[:1])


def test_assumptions_have_their_numbers(network, stages):
    check = predict.check_matrix_assumptions(network, stages)
    assert check.hold
    _, (slope,) = network.value_and_gradient(torch.zeros(2, 2, dtype=torch.float64))
    assert check.gradient_at_zero.margin == pytest.approx(float(torch.linalg.svdvals(slope)[0]))
    assert check.nondegeneracy.margins == tuple(s.gap / s.time for s in stages)
    assert json.loads(to_json(check.to_dict()))["mixing"]["holds"]


def test_curvature_modulo_gauge_in_closed_form():
    """`L = |A - S|^2/2` at rank 1: eigenvalues in (u, v) are s_1 -+ s_i, 2 s_1, and 0 for the gauge."""
    target = torch.diag(torch.tensor([3.0, 1.0], dtype=torch.float64))
    loss = lambda a: ((a - target) ** 2).sum() / 2  # noqa: E731
    check = predict.check_matrix_assumptions(loss, predict.greedy_matrices(loss, [(2, 2)], max_stages=1))
    assert check.strict_minima.margin == pytest.approx(2.0, rel=1e-9)


def test_a_loss_that_falls_into_blocks_does_not_mix():
    target = torch.diag(torch.tensor([3.0, 1.0, 2.0], dtype=torch.float64))
    loss = lambda a: ((a - target) ** 2).sum() / 2  # noqa: E731
    check = predict.check_matrix_assumptions(loss, predict.greedy_matrices(loss, [(3, 3)]))
    assert not check.mixing.holds
    assert check.strict_minima.holds


def test_nothing_found_is_nothing_to_check(network):
    stages = predict.greedy_matrices(network, until=1e-6)
    with pytest.raises(RankriseError, match="nothing to check"):
        predict.check_matrix_assumptions(network, stages)


def test_records_are_json(network, stages, flows):
    record = json.loads(to_json(stages.to_dict(network.label)))
    assert [row["time"] for row in record["stages"]] == [stage.time for stage in stages]
    assert record["stages"][0]["label"] == "A"
    assert len(json.loads(to_json(flows[0].to_dict()))["times"]) == len(flows[0].times)
