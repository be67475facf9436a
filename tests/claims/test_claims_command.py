"""`rankrise claims` on tracked runs: what it prints, and what it keeps."""

import json
import shutil
from pathlib import Path

import pytest

from rankrise.commands import main

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
