"""`rankrise predict` and `rankrise flow`, with diagonal and with full weights."""

import json

import pytest
import torch

from rankrise import predict
from rankrise.commands import main
from rankrise.show.stages import print_stages

SMALL = ["--dimension", "2", "--tokens", "3", "--samples", "20"]
FULL = [*SMALL, "--weights", "full"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SMALL, FULL])
def test_predict_prints_every_number_of_the_stages(flags, capsys, tmp_path):
    main(["predict", *flags, "--until", "100", "--check", "--json", "--out", str(tmp_path)])
    printed = json.loads(capsys.readouterr().out)
    network = predict.full_head(2, 3, 20) if flags is FULL else predict.diagonal_head(2, 3, 20)
    stages = predict.greedy(network, until=100)
    assert [row["time"] for row in printed["stages"]] == pytest.approx([stage.time for stage in stages])
    assert printed["stages"][0]["label"][:2] in ("KQ", "VO")
    assert set(printed["assumptions"]) == set(predict.check_assumptions(network, stages).to_dict())
    assert json.loads((tmp_path / "stages.json").read_text()) == printed
    assert (tmp_path / "stages.png").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize("flags", [SMALL, FULL])
def test_flow_prints_predicted_and_measured_times(flags, capsys, tmp_path):
    main(["flow", *flags, "--log10_alpha", "-40", "--until", "4", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "T_k" in printed
    assert ("Mixing: ordered" in printed) == (flags is FULL)
    record = json.loads((tmp_path / "flow.json").read_text())
    assert record["ending"] == "reached"
    assert record["largest_time_error"] < 0.1


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["predict", *FULL, "--network", "transformer"], "transformer"),
        (["predict", *FULL, "--network", "linear", "--objective", "cross-entropy"], "cross-entropy"),
        (["predict", "--dimension", "100000"], "100000"),
        (["predict", "--samples", "100000000"], "100000000"),
        (["flow", *SMALL, "--until", "1e300"], "1e+300"),
    ],
)
def test_what_cannot_be_computed_is_refused_before_it_starts(words, named, capsys):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert named in capsys.readouterr().err


def quadratic(target):
    return lambda a: ((a - torch.tensor(target).double()) ** 2).sum() / 2


def test_the_table_explains_its_columns_and_why_it_ends(capsys):
    print_stages(predict.greedy(quadratic([1.0, -2.0]), 2, until=0.75), "ab".__getitem__)
    printed = capsys.readouterr().out
    assert ["1", "0.5000", "b", "-", "0.5"] in [line.split() for line in printed.splitlines()]
    assert "T_k: " in printed
    assert "Raise --until" in printed
    assert "left" not in printed  # no coordinate leaves: there is nothing to explain
    assert "flow" not in printed
    print_stages(predict.greedy(quadratic([1.0, -2.0]), 2, until=0.25), "ab".__getitem__)
    assert capsys.readouterr().out.startswith("No stage: ")


def test_the_flow_stands_beside_the_limit(capsys):
    loss = quadratic([1.0, -2.0])
    flow = predict.gradient_flow(loss, [1.0, 0.5], [0.2, 1.5], log10_alpha=-1000, until=0.75)
    print_stages(predict.greedy(loss, 2), "ab".__getitem__, flow)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    shown = {row[3]: row[2] for row in rows if len(row) == 6 and row[0] in "12"}
    assert shown == {"b": f"{flow.activation_times()[1]:.4f}", "a": "inf"}
