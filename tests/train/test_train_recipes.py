"""Every recipe of a training run takes two steps on made-up data."""

import json
import sys

import numpy
import pytest
from made_data import write_cifar, write_photographs
from tiny_text import hub_of, stories_of, write_for

from rankrise import watch
from rankrise.commands import main
from rankrise.recipes.files import names
from rankrise.train import TrainSettings, read_recipe

SMALL = "--layers=2 --batch_size=2 --micro_batch_size=1 --measurements=2 --spectra_epochs=500 --log_every=1"
SMALL_TEXT = "--heads=4 --hidden_size=32 --head_size=8 --mlp_size=32 --sequence_length=64"
PLAIN = "--compile=none --precision=fp32 --workers=0 --check_data=no --json"


def made_up(data, settings):
    """Write data in the recipe's format; the number of training examples."""
    if settings.subject == "text":
        return write_for(settings.changed({"sequence_length": 64}, "the test"), data)
    if settings.data == "image-folder":
        write_photographs(data / settings.data_name, {"one": 2, "two": 2}, 2, side=settings.image_size)
        return 4
    if settings.data in ("cifar10", "cifar100"):
        version = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}[settings.data]
        return len(write_cifar(data, version)[1])
    return 1500 if settings.data == "digits" else settings.examples


@pytest.mark.parametrize("recipe", [name for name in names() if not name.startswith("toy-")])
def test_every_recipe_takes_two_steps(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    columns = {part: {"text": stories_of(part[:5]).splitlines()} for part in ("train", "validation")}
    monkeypatch.setitem(sys.modules, "datasets", hub_of(**columns))
    settings = read_recipe(recipe)
    epochs = 2 / (made_up(tmp_path / "data", settings) // 2)
    flags = [f"--epochs={epochs}", f"--warm_up_epochs={epochs / 2}", f"--data_folder={tmp_path / 'data'}"]
    small = [*SMALL.split(), *(SMALL_TEXT.split() if settings.subject == "text" else ())]
    main(["train", recipe, "--run", str(tmp_path / "run"), *small, *PLAIN.split(), *flags])
    printed = json.loads(capsys.readouterr().out)
    assert printed["step"] == printed["total_steps"] == 2
    if settings.subject == "text":
        wanted = {"perplexity", *(f"perplexity/{name}" for name in settings.also_validate)}
        assert all(1 < printed["metrics"][name] < 1000 for name in wanted)
    else:
        assert 0 < printed["metrics"]["validation_loss"] < 10
    run = watch.load(tmp_path / "run")
    assert run.spectra_steps.tolist() == [2]
    assert numpy.all(run.norm("VO")[-1] > 0)


def test_the_default_settings_are_the_recipe_of_cifar_10():
    assert read_recipe("vit-cifar10") == TrainSettings()


@pytest.mark.parametrize("command", ["train", "sweep"])
def test_what_is_missing_is_said_before_anything_starts(tmp_path, capsys, monkeypatch, command):
    for words in (["--data_folder", str(tmp_path)], []):
        if command == "sweep":
            words = ["--set", f"data_folder={tmp_path}"]
        with pytest.raises(SystemExit, match="2"):
            main([command, "vit-cifar10", "--run", str(tmp_path / "run"), *words])
        error = capsys.readouterr().err
        assert error.count("\n") == 1
        assert ("accelerate" if sys.modules.get("accelerate", 0) is None else "cifar-10-batches-bin") in error
        assert not (tmp_path / "run").exists()
        monkeypatch.setitem(sys.modules, "accelerate", None)
