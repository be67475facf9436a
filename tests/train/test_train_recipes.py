"""Every recipe of a training run takes two steps on made-up data."""

import json
from dataclasses import replace

import numpy
import pytest
import torch
from tiny_training import write_cifar, write_photographs, write_stories

from rankrise import watch
from rankrise.commands import main
from rankrise.recipes.files import names
from rankrise.train import TrainSettings, read_recipe
from rankrise.train import _images as files
from rankrise.train._task import task_of

SMALL = "--layers=2 --batch_size=2 --micro_batch_size=1 --measurements=2 --spectra_epochs=500 --log_every=1"
SMALL_TEXT = "--heads=4 --hidden_size=32 --head_size=8 --mlp_size=32 --sequence_length=64"
OTHERS = [
    name for name in names() if not name.startswith("toy-") and not name.endswith(("-choices", "-scale"))
]
PLAIN = "--compile=none --precision=fp32 --workers=0 --json"


def made_up(data, settings, monkeypatch):
    """Write data in the recipe's format; the number of training examples."""
    if settings.subject == "text":
        write_stories(data)
        (data / "pairs").rename(data / "gpt2")
        if settings.data == "text":
            (data / "stories").rename(data / settings.data_name)
        for name in settings.also_validate:
            (data / name).mkdir()
            (data / name / "valid.tokens").write_text(" A well @-@ known text , of few words . \n")
        asked = replace(settings, data_folder=str(data), sequence_length=64)
        return task_of(asked, torch.device("cpu")).examples
    if settings.data == "image-folder":
        write_photographs(data / settings.data_name, {"one": 2, "two": 2}, 2, side=settings.image_size)
        return 4
    if settings.data in files.CIFAR_FILES:
        _, labels, sums = write_cifar(data, settings.data)
        monkeypatch.setitem(files.CIFAR_FILES, settings.data, sums)
        return len(labels)
    return 1500 if settings.data == "digits" else settings.examples


@pytest.mark.slow
@pytest.mark.parametrize("recipe", OTHERS)
def test_every_recipe_takes_two_steps(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    settings = read_recipe(recipe)
    epochs = 2 / (made_up(tmp_path / "data", settings, monkeypatch) // 2)
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


def test_missing_data_are_named_before_anything_starts(tmp_path, capsys):
    for command, *words in (
        ["train", "vit-cifar10", "--data_folder", str(tmp_path)],
        ["sweep", "vit-cifar10", "--set", f"data_folder={tmp_path}"],
    ):
        with pytest.raises(SystemExit, match="2"):
            main([command, "--run", str(tmp_path / "run"), *words])
        assert "cifar-10-batches-bin" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
