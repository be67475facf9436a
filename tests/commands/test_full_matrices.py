"""`rankrise predict` and `rankrise flow` with full weights."""

import json

import pytest

from rankrise import predict
from rankrise.commands import main

SMALL = ["--weights", "full", "--dimension", "2", "--tokens", "3", "--samples", "20"]


def test_predict_prints_every_number_of_the_stages(capsys, tmp_path):
    main(["predict", *SMALL, "--until", "100", "--check", "--json", "--out", str(tmp_path)])
    printed = json.loads(capsys.readouterr().out)
    stages = predict.greedy_matrices(predict.full_head(2, 3, 20), until=100)
    assert [row["time"] for row in printed["stages"]] == pytest.approx([stage.time for stage in stages])
    assert printed["stages"][0]["label"] in ("KQ", "VO")
    assert set(printed["assumptions"]) == {"gradient_at_zero", "nondegeneracy", "strict_minima", "mixing"}
    assert json.loads((tmp_path / "stages.json").read_text()) == printed
    assert (tmp_path / "stages.png").stat().st_size > 1000


def test_flow_prints_predicted_and_measured_times(capsys, tmp_path):
    main(["flow", *SMALL, "--log10_alpha", "-40", "--until", "4", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "T_k" in printed
    assert "Mixing: ordered" in printed
    record = json.loads((tmp_path / "flow.json").read_text())
    assert record["ending"] == "reached"
    assert record["largest_time_error"] < 0.1


def test_columns_bound_the_rank(capsys):
    main(["predict", *SMALL, "--network", "linear", "--columns", "1", "--json"])
    assert [row["rank"] for row in json.loads(capsys.readouterr().out)["stages"]] == [1]


@pytest.mark.parametrize(
    "flags", [["--network", "transformer"], ["--network", "linear", "--objective", "cross-entropy"]]
)
def test_networks_without_full_weights_are_refused(flags, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["predict", *SMALL, *flags])
    assert ended.value.code == 2
    assert "has no full weights here" in capsys.readouterr().err
