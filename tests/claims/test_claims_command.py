"""`rankrise claims` on tracked runs: what it prints, and what it keeps."""

import json
import re
import shutil
from pathlib import Path

import pytest
from tracked_runs import changed

from rankrise.claims import check_claims
from rankrise.commands import main
from rankrise.runs import open as open_runs
from rankrise.show.report.claims import claims_section

pytestmark = pytest.mark.slow


def test_the_command_judges_a_folder_of_runs_and_keeps_the_verdicts(
    tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("unit", "small"):
        shutil.copytree(tracked[name], tmp_path / "sweep" / name)
    main(["claims", str(tmp_path / "sweep"), "--json"])
    printed = json.loads(capsys.readouterr().out)
    of_a_study = ["low rank", "rank grows", "initialisation scale", "spectra", "products"]
    assert list(dict.fromkeys(claim["name"] for claim in printed)) == of_a_study
    assert [claim["part"] for claim in printed if claim["name"] == "spectra"] == ["KQ", "VO"]
    kept = json.loads((tmp_path / "sweep" / "claims.json").read_text())
    assert kept == {"format": "rankrise-claims/5", "claims": printed}
    other = tmp_path / "kept" / "products.json"
    main(["claims", str(tmp_path / "sweep"), "--only", "products", "--out", str(other), "--all"])
    assert [claim["name"] for claim in json.loads(other.read_text())["claims"]] == ["products"]
    assert json.loads((tmp_path / "sweep" / "claims.json").read_text()) == kept
    with pytest.raises(SystemExit, match="2"):  # verdicts replace nothing but verdicts
        main(["claims", str(tmp_path / "sweep"), "--out", str(tmp_path / "sweep" / "unit" / "run.json")])
    assert "run.json" in capsys.readouterr().err


def test_the_command_says_a_claim_once_and_then_its_verdict_on_each_data_set(
    tracked: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(tracked["unit"]), str(tracked["wander"])]
    main(["claims", *runs, "--only", "products", "--all"])
    printed = capsys.readouterr().out
    assert printed.count("products (the reproduction's): What is learned in VO") == 1
    assert "\nCIFAR-10  holds: every number passes. " in printed
    assert "\n  stable rank of VO over that of KQ: layer 1" in printed
    assert "\nwander  not judged: Trained without a recipe" in printed
    main(["claims", *runs, "--only", "products", "--judge", "--all"])
    assert "\nwander  does not hold: it fails on: " in capsys.readouterr().out


def test_in_short_the_verdicts_come_first_and_what_is_not_judged_is_said_once(
    tracked: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    other = changed(tracked["again"], tmp_path / "other", {"learning_rate": 0.5})
    runs = [str(tracked["unit"]), str(other), str(tracked["wander"])]
    main(["claims", *runs, "--out", str(tmp_path / "kept.json")])
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines.pop().startswith("Written: ")
    assert max(map(len, lines)) <= 80
    assert lines[1] == "CIFAR-10: the paper's claims"
    assert re.match(r"low rank +KQ  holds ", lines[2])
    assert "CIFAR-10: the reproduction's claims" in lines
    words = " ".join(printed.split())
    assert words.count("Not judged on wander: low rank, rank grows, initialisation scale, spectra") == 1
    left_out = "Left out: other. "
    assert left_out in words
    assert left_out in claims_section(check_claims(open_runs(runs)))
