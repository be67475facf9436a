"""Settings are declared once: help, flags, recipes and dataclass have the same names, types and defaults."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import yaml
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from rankrise.commands import command_of, main
from rankrise.commands.arguments import parsed
from rankrise.commands.network import NetworkSettings
from rankrise.foundations.settings import in_words, meanings
from rankrise.recipes import toy_settings, train_settings
from rankrise.recipes.files import names, settings_in
from rankrise.recipes.toy_settings import ToySettings
from rankrise.recipes.train_settings import TrainSettings

OF_COMMAND = {
    "train": TrainSettings,
    "toy": ToySettings,
    "predict": NetworkSettings,
    "flow": NetworkSettings,
}
PLACEHOLDERS = {int: "N", float: "X", str: "TEXT", bool: "yes|no"}


def flags_in(help_text: str) -> dict[str, tuple[str, str]]:
    """By flag in the group of settings: what stands for its value, and its default."""
    text = re.sub(r"(?<=\w)-\n\s+", "-", help_text.split("\nsettings:\n")[1])
    found = re.findall(r"^  --(\w+) (\S+)((?:\n   |[^\n])*)", text, re.MULTILINE)
    return {
        name: (value, (re.findall(r"\(default: (.*?)\)$", " ".join(rest.split())) or [""])[-1])
        for name, value, rest in found
    }


def placeholder(wanted: Any) -> str:
    if get_origin(wanted) is Literal:
        return "{" + ",".join(get_args(wanted)) + "}"
    if get_origin(wanted) is tuple:
        word = PLACEHOLDERS.get(get_args(wanted)[0], "TEXT")
        return f"{word},{word}"
    return PLACEHOLDERS[wanted]


@pytest.mark.parametrize("command", OF_COMMAND)
def test_help_has_every_setting_with_its_type_and_default(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    settings = OF_COMMAND[command]
    types = get_type_hints(settings)
    wanted = {one.name: (placeholder(types[one.name]), in_words(one.default)) for one in fields(settings)}
    assert flags_in(capsys.readouterr().out) == wanted


@pytest.mark.parametrize("name", names())
def test_a_recipe_says_what_the_same_flags_say(name: str) -> None:
    command = "toy" if name.startswith("toy-") else "train"
    assert OF_COMMAND[command]().changed(given_by(command, settings_in(name)), "a test") == read(
        command, name
    )


def values_of(kind: type, at_most: float | None) -> st.SearchStrategy[Any] | None:
    """Good values of a type, within what the setting allows; None: a text."""
    if kind is int:
        return st.integers(1, min(900, int(at_most or 900)))
    if kind is float:
        return st.floats(1e-5, min(0.9, at_most or 0.9), allow_subnormal=False)
    return st.booleans() if kind is bool else None


def changes_of(settings: type) -> st.SearchStrategy[dict[str, Any]]:
    """Some settings and good values for them; texts have meanings of their own and stay."""
    values, allowed = {}, meanings(settings)
    for name, wanted in get_type_hints(settings).items():
        many = get_origin(wanted) is tuple
        one = get_args(wanted)[0] if many else wanted
        words = get_args(one) if get_origin(one) is Literal else None
        choices = st.sampled_from(words) if words else values_of(one, allowed[name].at_most)
        if choices is not None and name not in ("data", "image_size", "patch_size", "step", "other_steps"):
            values[name] = st.lists(choices, min_size=1, unique=True) if many else choices
    return st.fixed_dictionaries({}, optional=values)


@hypothesis_settings(deadline=None, max_examples=50)
@given(changes=changes_of(TrainSettings))
def test_flags_and_a_recipe_say_the_same_of_training(changes: dict[str, Any], tmp_path_factory: Any) -> None:
    same_by_flags_and_recipe("train", changes, tmp_path_factory.mktemp("recipe"))


@hypothesis_settings(deadline=None, max_examples=50)
@given(changes=changes_of(ToySettings))
def test_flags_and_a_recipe_say_the_same_of_the_toy(changes: dict[str, Any], tmp_path_factory: Any) -> None:
    same_by_flags_and_recipe("toy", changes, tmp_path_factory.mktemp("recipe"))


def same_by_flags_and_recipe(command: str, changes: dict[str, Any], folder: Path) -> None:
    recipe = folder / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(changes) if changes else "about: null\n")
    given = given_by(command, changes)
    settings = OF_COMMAND[command]()
    assert given.keys() == changes.keys()
    assert settings.changed(given, "a test") == settings.changed(changes, "a test") == read(command, recipe)


def given_by(command: str, changes: dict[str, Any]) -> dict[str, Any]:
    """What flags with these values give."""
    words = [word for name, value in changes.items() for word in (f"--{name}", in_words(value))]
    given: dict[str, Any] = parsed(command, command_of(command), ["somewhere", *words])["settings"]
    return given


def read(command: str, recipe: str | Path) -> ToySettings | TrainSettings:
    return (toy_settings if command == "toy" else train_settings).read_recipe(recipe)
