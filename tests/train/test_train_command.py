"""What `rankrise train` says: while it trains, when it goes on, and of settings that are out of place."""

import json
import shutil
import sys
from pathlib import Path

import pytest
from tiny_training import recipe_file

from rankrise.commands import main
from rankrise.train import TrainSettings


def said(capsys: pytest.CaptureFixture[str], recipe: Path, folder: Path, *flags: str) -> tuple[int, str]:
    """The exit code of the command, and what it says on standard error."""
    try:
        main(["train", str(recipe), "--run", str(folder), *flags])
    except SystemExit as ending:
        return int(ending.code or 0), capsys.readouterr().err
    return 0, capsys.readouterr().err


def test_a_loss_that_is_not_known_yet_is_left_out(
    tiny: TrainSettings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_file(tiny, tmp_path / "recipe.yaml", log_every=100)
    _, printed = said(capsys, recipe, tmp_path / "run")
    lines = [line for line in printed.splitlines() if "accuracy" in line]
    assert any("epoch 1, accuracy" in line for line in lines)
    assert any("epoch 2, loss" in line for line in lines)


def test_what_is_in_the_folder_is_said_once_it_is_known_to_be_this_run(
    tiny: TrainSettings, whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_file(tiny, tmp_path / "recipe.yaml")
    assert said(capsys, recipe, whole_run) == (0, f"{whole_run} is finished, nothing is left to train.\n")
    code, printed = said(capsys, recipe, whole_run, "--seed", "1")
    assert code == 2
    assert printed.startswith(f"rankrise: {whole_run} holds a run with seed 0, not 1")
    assert "goes on" not in printed

    part = tmp_path / "part"
    shutil.copytree(whole_run, part)
    info = json.loads((part / "run.json").read_text())
    (part / "run.json").write_text(json.dumps(info | {"finished": None}))
    assert said(capsys, recipe, part)[1].startswith(f"{part} goes on from step-0000000030.")


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_without_its_extra_it_is_named(
    tiny: TrainSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(SystemExit, match="2"):
        main([command, str(recipe_file(tiny, tmp_path / "recipe.yaml")), "--run", str(tmp_path / "run")])
    message = capsys.readouterr().err.strip()
    assert message.startswith("rankrise: training needs accelerate")
    assert message.endswith("pip install '.[train]'.")
    assert not (tmp_path / "run").exists()


def test_settings_of_a_time_after_the_end_are_noted(
    tiny: TrainSettings, whole_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = recipe_file(tiny, tmp_path / "recipe.yaml")
    assert "Note" not in said(capsys, recipe, whole_run)[1]
    late = ["--epochs", "0.2", "--warm_up_epochs", "100", "--spectra_epochs", "0.1,1,70"]
    _, printed = said(capsys, recipe, tmp_path / "run", *late)
    assert "learning rate only rises: pass warm_up_epochs below 0.2, or more epochs." in printed
    assert printed.count("spectra_epochs has 1, 70, after the last of 0.2 epochs") == 1
