"""Recipes and settings: found, read, checked; the kinds of settings, and older records."""

import json

import pytest

from rankrise import RankriseError, toy, train
from rankrise.commands import COMMANDS, main
from rankrise.recipes.files import about, choices_in, find, names, settings_in
from rankrise.recipes.toy_settings import log10_of, scale_name
from rankrise.recipes.train_settings import TrainSettings, science_of


def test_a_recipe_is_found_by_name_from_any_folder_and_by_path(tmp_path, monkeypatch):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("layers: 3\nchoices:\n  base:\n  deep: {layers: 9}\n")
    monkeypatch.chdir(tmp_path)
    assert settings_in("vit-digits")["data"] == "digits"
    assert settings_in("mine.yaml") == settings_in(recipe) == {"layers": 3}
    assert choices_in(recipe) == {"base": {}, "deep": {"layers": 9}}
    assert train.read_recipe(recipe).layers == 3
    with pytest.raises(RankriseError, match="vit-digits"):
        find("vit-digit")


@pytest.mark.parametrize("name", names())
def test_every_recipe_says_what_it_reproduces_and_every_choice_is_a_change(name):
    described = about(name)
    assert {"reproduces", "command", "takes", "reaches"} == described.keys() - {"needs"}
    words = described["command"].removeprefix("accelerate launch -m ").split()
    assert (words[0], words[1] in COMMANDS, name in words[2:]) == ("rankrise", True, True)
    if choices_in(name):
        settings = train.read_recipe(name)
        runs = {one: settings.changed(changes, one) for one, changes in choices_in(name).items()}
        assert runs["base"] == settings
        assert len(set(runs.values())) == len(runs)


def test_the_command_lists_them(capsys):
    main(["recipes"])
    printed = capsys.readouterr().out.splitlines()
    assert set(names()) <= set(printed)
    assert max(map(len, printed)) <= 78
    main(["recipes", "--json"])
    assert [one["name"] for one in json.loads(capsys.readouterr().out)] == names()
    main(["recipes", "vit-digits-choices"])
    assert "optimiser: muon" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("read", "text", "name"),
    [
        (train.read_recipe, "", "recipe.yaml"),
        (train.read_recipe, "layers: [1", "recipe.yaml"),
        (train.read_recipe, "layers: many", "layers"),
        (train.read_recipe, "layerz: 3", "layerz"),
        (train.read_recipe, "spectra_epochs: 1, -1", "spectra_epochs"),
        (train.read_recipe, "data: made-text", "head_size"),
        (train.read_recipe, "cuda_graph: perhaps", "cuda_graph"),
        (toy.read_recipe, "alphas: 2", "alpha"),
        (toy.read_recipe, "dimension: 0", "dimension"),
        (toy.read_recipe, "other_steps: 0.005", "other_steps"),
        (toy.read_recipe, "experiments: flow,vit", "vit"),
    ],
)
def test_mistakes_in_a_recipe_are_named(tmp_path, read, text, name):
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(RankriseError, match=name):
        read(tmp_path / "recipe.yaml")


@pytest.mark.parametrize(
    ("alpha", "name", "log10"),
    [
        ("0.10", "1e-1", -1.0),
        (1e-32, "1e-32", -32.0),
        ("5e-324", "5e-324", -323.30103),
        ("1E-1000", "1e-1000", -1000.0),
    ],
)
def test_a_scale_has_one_name(alpha, name, log10):
    assert scale_name(alpha) == name
    assert log10_of(name) == pytest.approx(log10)


def test_an_earlier_record_means_the_values_of_then():
    now = TrainSettings().to_dict()
    missing = ("clip", "initialisation", "qkv_bias")
    earlier = {name: value for name, value in now.items() if name not in missing}
    assert science_of(earlier) == science_of(now | {"initialisation": "normal", "qkv_bias": True})
    assert science_of(earlier) != science_of(now)
    assert science_of(now | {"compile": "none", "measurements": 3, "data_folder": "x"}) == science_of(now)
    assert science_of(now | {"stream": False}) == science_of(now)
