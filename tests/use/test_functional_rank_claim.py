"""The claim of a low functional rank, on a run that was truncated and on one that was not."""

import json
from pathlib import Path
from typing import Any

import pytest

from rankrise.claims import check_claims
from rankrise.commands import main
from rankrise.foundations.files import write_json
from rankrise.runs import open
from rankrise.train import TrainSettings, train


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    settings = TrainSettings(
        data="digits", image_size=8, patch_size=2, augmentation="none", layers=1, heads=2, hidden_size=24,
        mlp_size=24, head_size=20, epochs=3, warm_up_epochs=0.5, batch_size=100, learning_rate=3e-3,
        precision="fp32", compile="none", evaluate_every=1, log_every=4, checkpoint_every=1, measurements=2,
        spectra_epochs=(1,),
    )  # fmt: skip
    train(settings, folder)
    return folder


def claims(run: Path) -> dict[str, Any]:
    found = check_claims(open([run]), everything=True)
    return {claim.part: claim for claim in found if claim.name == "functional rank"}


def curves(kq: int | None, vo: int | None) -> dict[str, Any]:
    points = [{"rank": 1, "gain": 0.5}, {"rank": 3, "gain": 0.9}]
    return {
        "curves": [
            {"group": name, "method": "plain", "functional_rank": rank, "full_rank": 40, "points": points}
            for name, rank in (("KQ", kq), ("VO", vo))
        ]
    }


def test_a_run_that_was_not_truncated_has_no_such_claim(run: Path) -> None:
    assert claims(run) == {}


def test_the_verdict_is_by_the_functional_rank_over_the_head_size(run: Path) -> None:
    path = run / "truncation.json"
    try:
        write_json(path, curves(kq=2, vo=5))
        found = claims(run)
        assert (found["KQ"].verdict, found["VO"].verdict) == ("holds", "does not hold")
        assert found["VO"].deciding[0].value == 0.25
        assert [measure.value for measure in found["KQ"].beside] == [0.5]
        write_json(path, curves(kq=None, vo=5))
        (undecided,) = claims(run).values()
        assert undecided.verdict == "not decided"
    finally:
        path.unlink()


def test_truncating_a_run_into_its_folder_lets_it_be_judged(run: Path, capsys: Any) -> None:
    main(["truncate", str(run), "--groups", "all,kq,vo", "--plain", "--out", str(run), "--json"])
    printed = json.loads(capsys.readouterr().out)
    functional = {curve["group"]: curve["functional_rank"] for curve in printed["curves"]}
    for product, claim in claims(run).items():
        if product:
            assert claim.deciding[0].value == functional[product] / 20
