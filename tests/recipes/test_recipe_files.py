"""Recipes as files: found by name or path, read with care, and what each says about itself."""

import json
from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.commands import COMMANDS, main
from rankrise.recipes import toy_settings
from rankrise.recipes.files import about, choices_in, find, names, settings_in
from rankrise.recipes.train_settings import read_recipe


def test_a_recipe_is_found_by_name_from_any_folder_and_by_path(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("layers: 3\n")
    monkeypatch.chdir(tmp_path)
    assert settings_in("vit-digits")["data"] == "digits"
    assert settings_in("mine.yaml") == settings_in(tmp_path / "mine.yaml") == {"layers": 3}
    for wrong, name in (("vit-digit", "vit-digits"), (str(tmp_path), "vit-digits")):
        with pytest.raises(RankriseError, match=name):
            find(wrong)


def test_choices_are_a_table_of_settings(tmp_path):
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("layers: 3\nchoices:\n  base:\n  deep: {layers: 9}\n")
    assert settings_in(recipe) == {"layers": 3}
    assert choices_in(recipe) == {"base": {}, "deep": {"layers": 9}}
    assert read_recipe(recipe).layers == 3
    for wrong in ("choices: deep", "choices: [deep]", "choices: {deep: 9}"):
        recipe.write_text(wrong)
        with pytest.raises(RankriseError, match="choices"):
            choices_in(recipe)
    recipe.write_text("choices: {base: }")
    with pytest.raises(RankriseError, match="choices"):
        toy_settings.read_recipe(recipe)


@pytest.mark.parametrize("name", [name for name in names() if choices_in(name)])
def test_every_choice_of_a_recipe_is_a_change_of_its_own(name):
    settings = read_recipe(name)
    runs = {one: settings.changed(changes, one) for one, changes in choices_in(name).items()}
    assert runs["base"] == settings
    assert len(set(runs.values())) == len(runs)


@pytest.mark.parametrize("name", names())
def test_every_recipe_says_what_it_reproduces_and_its_command(name):
    described = about(name)
    assert all(vars(described).values())
    words = described.command.removeprefix("accelerate launch -m ").split()
    assert (words[0], words[1] in COMMANDS, name in words[2:]) == ("rankrise", True, True)


def test_the_command_lists_them(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    main(["recipes"])
    printed = capsys.readouterr().out.splitlines()
    assert set(names()) <= set(printed)
    assert max(map(len, printed)) <= 40
    main(["recipes", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == names()
    main(["recipes", "vit-digits-choices"])
    printed = capsys.readouterr().out
    assert "optimiser muon" in printed
    assert "patch_size: 2" in printed


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (b"", "recipe.yaml"),
        (b"- 1\n- 2\n", "recipe.yaml"),
        (b"layers: [1", "recipe.yaml"),
        ("note: Adserà".encode("latin-1"), "recipe.yaml"),
        (b"layers: 2\nseed: 0\nlayers: 3\n", "layers"),
        (b"layers: many", "layers"),
    ],
)
def test_bad_recipes_are_refused_in_one_sentence(tmp_path: Path, text: bytes, name: str):
    (tmp_path / "recipe.yaml").write_bytes(text)
    with pytest.raises(RankriseError, match=name) as error:
        read_recipe(tmp_path / "recipe.yaml")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("about_it", ["words", "{reproduces: all}", "{colour: red}"])
def test_about_is_checked(tmp_path, about_it):
    (tmp_path / "recipe.yaml").write_text(f"about: {about_it}\nlayers: 2\n")
    with pytest.raises(RankriseError, match="about"):
        about(tmp_path / "recipe.yaml")


def test_a_recipe_of_another_command_names_it():
    with pytest.raises(RankriseError, match="rankrise toy"):
        read_recipe("toy-quick")
    with pytest.raises(RankriseError, match="rankrise train"):
        toy_settings.read_recipe("vit-digits")
