"""The stages on the terminal: what the columns mean, and why there are no more."""

import torch

from rankrise import predict
from rankrise.show.stage_table import print_stages


def quadratic(target, features=None):
    x = torch.eye(len(target)) if features is None else torch.tensor(features)
    b = torch.tensor(target, dtype=torch.float64)
    return lambda a: ((a @ x.double() - b) ** 2).sum() / 2


def test_the_table_says_what_its_columns_mean_and_why_it_ends(capsys):
    loss = quadratic([1.0, -2.0])
    print_stages(predict.greedy(loss, 2, until=0.75), "ab".__getitem__)
    printed = capsys.readouterr().out
    assert ["1", "0.5000", "b", "-", "0.5"] in [line.split() for line in printed.splitlines()]
    assert "T_k: the rescaled time" in printed
    assert "The end: The next stage begins after rescaled time 0.75. Raise --until to see it.\n" in printed
    assert "left" not in printed  # no coordinate leaves: there is nothing to explain
    assert "flow" not in printed


def test_without_stages_there_is_no_table_to_explain(capsys):
    print_stages(predict.greedy(quadratic([1.0, -2.0]), 2, until=0.25), "ab".__getitem__)
    printed = capsys.readouterr().out
    assert printed == "No stage: The next stage begins after rescaled time 0.25. Raise --until to see it.\n"


def test_a_coordinate_that_leaves_has_a_column(capsys):
    loss = quadratic([1.0, 0.3, -1.0], [[1.0, 0.9, 0.0], [0.9, 1.0, 0.5], [0.0, 0.5, 1.0]])
    stages = predict.greedy(loss, 3, max_stages=3)
    assert stages[2].left == (0,)
    print_stages(stages, "abc".__getitem__)
    printed = capsys.readouterr().out
    assert [line.split()[-1] for line in printed.splitlines() if line.split()[:1] == ["3"]] == ["a"]
    assert "left: coordinates that fall back to zero" in printed


def test_the_flow_stands_beside_the_limit(capsys):
    loss = quadratic([1.0, -2.0])
    flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], log10_alpha=-1000, until=0.75)
    print_stages(predict.greedy(loss, 2), "ab".__getitem__, flow)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[3]: row[2] for row in rows if len(row) == 6 and row[0] in "12"}
    assert shown == {"b": f"{flow.activation_times()[1]:.4f}", "a": "inf"}
