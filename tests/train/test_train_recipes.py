"""Every recipe of a training run: it parses, says what it is, and takes two steps on made-up data."""

import json
import sys
from pathlib import Path

import numpy
import pytest
from PIL import Image
from test_train_data import write_cifar
from tiny_text import hub_of, stories_of, write_for

from rankrise import watch
from rankrise.commands import main
from rankrise.recipes.files import names
from rankrise.train import TrainSettings, read_recipe

RECIPES = [name for name in names() if not name.startswith("toy-")]
SMALL = [
    "--layers=2",
    "--batch_size=2",
    "--micro_batch_size=1",
    "--measurements=2",
    "--spectra_epochs=500",
    "--log_every=1",
]
SMALL_TEXT = [
    "--heads=4",
    "--hidden_size=32",
    "--head_size=8",
    "--mlp_size=32",
    "--sequence_length=64",
]


def made_up(data: Path, settings: TrainSettings) -> int:
    """Write data in the recipe's format; the number of training examples."""
    if settings.subject == "text":
        return write_for(settings.changed({"sequence_length": 64}, "the test"), data)
    if settings.data == "digits":
        return 1500
    if settings.data == "regression":
        return settings.examples
    if settings.data == "image-folder":
        for part in ("train", "val"):
            for name in ("one", "two"):
                place = data / settings.data_name / part / name
                place.mkdir(parents=True)
                for number in range(2):
                    shape = (settings.image_size, settings.image_size + 8, 3)
                    pixels = numpy.random.default_rng(number).integers(0, 256, shape, dtype=numpy.uint8)
                    Image.fromarray(pixels).save(place / f"{number}.jpeg")
        return 4
    images, _ = write_cifar(
        data, {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-python"}[settings.data]
    )
    return len(images)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_recipe_takes_two_steps(recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    columns = {part: {"text": stories_of(part[:5]).splitlines()} for part in ("train", "validation")}
    monkeypatch.setitem(sys.modules, "datasets", hub_of(**columns))
    settings = read_recipe(recipe)
    examples = made_up(tmp_path / "data", settings)
    epochs = 2 / (examples // 2)
    plain = ["--compile=none", "--precision=fp32", "--workers=0", "--check_data=no", "--json"]
    flags = [f"--epochs={epochs}", f"--warm_up_epochs={epochs / 2}", f"--data_folder={tmp_path / 'data'}"]
    small = [*SMALL, *(SMALL_TEXT if settings.subject == "text" else ())]
    main(["train", recipe, "--run", str(tmp_path / "run"), *small, *plain, *flags])
    printed = json.loads(capsys.readouterr().out)
    assert printed["step"] == printed["total_steps"] == 2
    if settings.subject == "text":
        wanted = {"perplexity", *(f"perplexity/{name}" for name in settings.also_validate)}
        assert all(1 < printed["metrics"][name] < 1000 for name in wanted)
    elif settings.subject == "images":
        assert 0 <= printed["metrics"]["accuracy"] <= 1
    else:
        assert 0 < printed["metrics"]["validation_loss"] < 10
    run = watch.load(tmp_path / "run")
    assert run.spectra_steps.tolist() == [2]
    assert numpy.all(run.norm("VO")[-1] > 0)


def test_the_default_settings_are_the_recipe_of_cifar_10():
    assert read_recipe("vit-cifar10") == TrainSettings()


def test_the_command_says_what_went_wrong(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "vit-cifar10", "--run", str(tmp_path / "run"), "--data_folder", str(tmp_path)])
    assert stopped.value.code == 2
    assert "download the binary version" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
