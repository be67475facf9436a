"""The commands toy and claims, as a user types them: what they print, and what they keep."""

import json
import shutil
from pathlib import Path

import pytest

from rankrise.commands import main
from rankrise.runs import ToyRun, open_toy

pytestmark = pytest.mark.slow

FLAGS = ["--dimension=2", "--tokens=3", "--samples=20", "--alphas=1e-4,1e-8", "--experiments=stages,flow"]


def test_toy_runs_and_resumes_from_the_folder_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["toy", str(folder), *FLAGS, "--workers=1"])
    assert f"The run is in {folder}" in capsys.readouterr().out
    run = open_toy(folder)
    assert run.settings.alphas == ("1e-4", "1e-8")
    (folder / "seed-0" / "flow-1e-4.safetensors").unlink()
    main(["toy", str(folder), "--workers", "1", "--json"])
    assert json.loads(capsys.readouterr().out)["folder"] == str(folder)
    assert open_toy(folder).missing == []


def test_claims_as_a_table(tiny: ToyRun, capsys: pytest.CaptureFixture[str]) -> None:
    main(["claims", str(tiny.folder)])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{tiny.folder.name}: the paper's claims convergence holds support holds" in printed
    assert printed.endswith(f"Written: {tiny.folder}/claims.json")


def test_the_command_judges_a_folder_of_runs_and_keeps_the_verdicts(tracked, tmp_path, capsys):
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
