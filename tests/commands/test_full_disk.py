"""Commands on a disk that is full: one sentence, exit code 2, nothing half-written."""

import sys
from pathlib import Path

import pytest
from made_runs import tracked
from tiny_training import TINY, recipe_file

from rankrise.commands import main


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tracked(tmp_path_factory.mktemp("made") / "run", seed=1)


@pytest.mark.parametrize("command", ["claims", "report", "figures", "train"])
def test_a_file_that_cannot_grow(run, tmp_path, capsys, monkeypatch, command):
    """The system itself refuses to write more."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported now would be torn for good
    names, out = {"claims": "claims.json", "report": "report.html", "figures": "."}, tmp_path / "out"
    if command == "train":
        words = ["train", str(recipe_file(TINY, tmp_path / "recipe.yaml")), "--run", str(out)]
    else:
        words = [command, str(run), "--out", str(out / names[command])]
    main(["claims", str(run), "--out", str(tmp_path / "claims.json")])  # what the first call compiles
    capsys.readouterr()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (400, limits[1]))
    try:
        with pytest.raises(SystemExit, match="2"):
            main(words)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("rankrise:")]
    assert "File too large" in sentence
    assert str(out) in sentence
    assert not [path for path in out.rglob(".*") if path.is_file() and path.name != ".lock"]
