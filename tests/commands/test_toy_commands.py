"""The commands toy and claims, as a user types them."""

import json
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


def test_claims_as_a_table_and_as_json(tiny: ToyRun, capsys: pytest.CaptureFixture[str]) -> None:
    main(["claims", str(tiny.folder)])
    printed = " ".join(capsys.readouterr().out.split())
    assert f"{tiny.folder.name}: the paper's claims convergence holds support holds" in printed
    assert printed.endswith(f"Written: {tiny.folder}/claims.json")
    main(["claims", str(tiny.folder), "--json"])
    printed = json.loads(capsys.readouterr().out)
    of_theorem = ["convergence", "support", "nondegeneracy"]
    others = ["strict minima", "noise robustness", "full weights"]
    assert list(dict.fromkeys(claim["name"] for claim in printed)) == of_theorem + others
    assert json.loads((tiny.folder / "claims.json").read_text())["claims"] == printed
