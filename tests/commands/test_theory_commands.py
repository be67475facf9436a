"""`rankrise predict` and `rankrise flow`, with diagonal and with full weights."""

import json

import pytest
import torch

from rankrise import predict
from rankrise.commands import main
from rankrise.show.tables import print_stages

SMALL = ["--dimension", "2", "--tokens", "3", "--samples", "20"]
FULL = [*SMALL, "--weights", "full"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SMALL, FULL])
def test_predict_prints_every_number_of_the_stages(flags, capsys):
    main(["predict", *flags, "--until", "100", "--check", "--json"])
    printed = json.loads(capsys.readouterr().out)
    network = predict.full_head(2, 3, 20) if flags is FULL else predict.diagonal_head(2, 3, 20)
    stages = predict.greedy(network, until=100)
    assert [row["time"] for row in printed["stages"]] == pytest.approx([stage.time for stage in stages])
    assert printed["stages"][0]["label"][:2] in ("KQ", "VO")
    assert set(printed["assumptions"]) == set(predict.check_assumptions(network, stages).to_dict())


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SMALL, FULL])
def test_flow_prints_predicted_and_measured_times(flags, capsys):
    command = ["flow", *flags, "--log10_alpha", "-40", "--until", "4"]
    main(command)
    printed = capsys.readouterr().out
    assert "T_k" in printed
    main([*command, "--json"])
    record = json.loads(capsys.readouterr().out)
    assert record["ending"] == "reached"
    assert record["largest_time_error"] < 0.1


def quadratic(target):
    return lambda a: ((a - torch.tensor(target).double()) ** 2).sum() / 2


def test_the_table_has_the_flow_beside_the_limit_and_says_why_it_ends(capsys):
    loss = quadratic([1.0, -2.0])
    flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], log10_alpha=-1000, until=0.75)
    print_stages(predict.greedy(loss, 2), "ab".__getitem__, flow)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[3]: row[2] for row in rows if len(row) == 6 and row[0] in "12"}
    assert shown == {"b": f"{flow.activation_times()[1]:.4f}", "a": "inf"}
    print_stages(predict.greedy(loss, 2, until=0.25), "ab".__getitem__)
    assert capsys.readouterr().out.startswith("No stage: ")
