"""Recipes as files: found by name or path, read with care, and what each says of itself."""

import os
from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.commands import COMMANDS, main
from rankrise.recipes import toy_settings
from rankrise.recipes.files import about, choices_in, find, names, settings_in
from rankrise.recipes.train_settings import read_recipe

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_a_recipe_is_found_by_name_from_any_folder_and_by_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.yaml").write_text("layers: 3\n")
    monkeypatch.chdir(tmp_path)
    assert settings_in("vit-digits")["data"] == "digits"
    assert settings_in("mine.yaml") == settings_in(tmp_path / "mine.yaml") == {"layers": 3}
    assert find("vit-digits") != find("mine.yaml")


def test_a_recipe_s_old_path_is_read_as_its_name_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.warns(FutureWarning, match=r"recipes/vit-digits\.yaml is now the recipe vit-digits: "):
        assert read_recipe("recipes/vit-digits.yaml") == read_recipe("vit-digits")
    for other in ("recipes/vit-digit.yaml", "recipes/vit-digits", "mine/vit-digits.yaml"):
        with pytest.raises(RankriseError, match="is not a recipe: did you mean vit-digits"):
            find(other)


def test_a_user_s_own_file_at_a_recipe_s_old_path_is_read_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "vit-digits.yaml").write_text("layers: 3\n")
    monkeypatch.chdir(tmp_path)
    assert settings_in("recipes/vit-digits.yaml") == {"layers": 3}
    assert not recwarn.list


def test_choices_are_a_table_of_settings(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("layers: 3\nchoices:\n  base:\n  deep: {layers: 9}\n")
    assert settings_in(recipe) == {"layers": 3}
    assert choices_in(recipe) == {"base": {}, "deep": {"layers": 9}}
    assert read_recipe(recipe).layers == 3
    for wrong in ("choices: deep", "choices: [deep]", "choices: {deep: 9}"):
        recipe.write_text(wrong)
        with pytest.raises(RankriseError, match="says 'choices' in another form: give each a name"):
            choices_in(recipe)
    recipe.write_text("choices: {base: }")
    with pytest.raises(RankriseError, match="has choices, which are for training runs"):
        toy_settings.read_recipe(recipe)


@pytest.mark.parametrize("name", [name for name in names() if choices_in(name)])
def test_every_choice_of_a_recipe_is_a_change_of_its_own(name: str) -> None:
    settings = read_recipe(name)
    runs = {one: settings.changed(changes, one) for one, changes in choices_in(name).items()}
    assert runs["base"] == settings
    assert len(set(runs.values())) == len(runs)


@pytest.mark.parametrize("name", names())
def test_every_recipe_says_what_it_reproduces_and_its_command(name: str) -> None:
    said = about(name)
    assert said is not None
    assert all(vars(said).values())
    words = said.command.removeprefix("accelerate launch -m ").split()
    assert words[0] == "rankrise"
    assert words[1] in COMMANDS
    assert name in words[2:]


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    main(["recipes"])
    printed = capsys.readouterr().out
    assert all(name in printed.splitlines() for name in names())
    assert max(map(len, printed.splitlines())) <= 40


def test_the_command_gives_all_of_it_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    main(["recipes", "--json"])
    listed = json.loads(capsys.readouterr().out)
    assert [one["name"] for one in listed] == names()
    assert all(Path(one["path"]).is_file() and one["reaches"] and one["takes"] for one in listed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no settings"),
        ("# all left out\n", "holds no settings"),
        ("- 1\n- 2\n", "holds no settings"),
        ("just words", "holds no settings"),
        ("layers: [1", "is not YAML"),
        ("\x00", "is not YAML"),
        ("seed: " + "1" * 5000, "is not YAML"),
        ("layers: 0x" + "f" * 5000, "is not YAML"),
        ("learning_rate: 0b" + "1" * 20_000, "is not YAML"),
        ("alphas: [1" + ":59" * 3000 + "]", "is not YAML"),
        ("layers: 2\nseed: 0\nlayers: 3\n", "gives layers twice, in lines 1 and 3: keep one of them."),
        (BOMB, r"has the alias \*a: write the value itself."),
        ("layers: " + "[" * 3000 + "]" * 3000, "has lists within lists"),
        ("note: " + "x" * 200_000, "has more than 100,000 bytes"),
        ("layers: " + "x" * 50_000, "gives layers as 'xxx.*…x*': pass a whole number."),
    ],
)
def test_bad_recipes_are_refused_in_a_short_sentence(tmp_path: Path, text: str, message: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(text)
    with pytest.raises(RankriseError, match=message) as error:
        read_recipe(recipe)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 1500


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "missing", "latin-1"])
def test_what_is_not_a_file_of_text_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    recipe = tmp_path / "recipe.yaml"
    if kind == "folder":
        recipe.mkdir()
    elif kind == "pipe":
        os.mkfifo(recipe)
    elif kind == "device":
        recipe.symlink_to("/dev/zero")
    elif kind == "latin-1":
        recipe.write_bytes("note: Adserà".encode("latin-1"))
    with pytest.raises(RankriseError, match="recipe"):
        read_recipe(recipe)


def test_about_is_checked(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    for said in ("words", "{reproduces: 3}", "{reproduces: all}", "{colour: red}"):
        recipe.write_text(f"about: {said}\nlayers: 2\n")
        assert settings_in(recipe) == {"layers": 2}
        with pytest.raises(RankriseError, match="about"):
            about(recipe)
