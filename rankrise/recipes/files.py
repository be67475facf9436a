"""Recipes as YAML files: those that come with the package, by name, and a user's own, by path."""

import os
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line
from rankrise.foundations.spelling import did_you_mean

FOLDER = Path(__file__).parent
LARGEST = 100_000
"""Bytes in a recipe."""
DEEPEST = 5
"""Lists within lists in a recipe."""


@dataclass(frozen=True)
class About:
    """What a recipe says of itself under `about`."""

    reproduces: str
    command: str
    """What runs it."""
    takes: str
    reaches: str
    """The number to compare one's own run with."""
    needs: str = "nothing"
    """The data that has to be there."""


def names() -> list[str]:
    """The recipes that come with the package.

    >>> "vit-digits" in names()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(recipe: str | Path) -> Path:
    """The file of a recipe: one of the package by its name, or any by its path.

    >>> find("vit-digits").name
    'vit-digits.yaml'
    >>> find("vit-digit")
    Traceback (most recent call last):
    rankrise.RankriseError: 'vit-digit' is not a recipe: did you mean vit-digits?
    """
    if str(recipe) in names():
        return FOLDER / f"{recipe}.yaml"
    path = Path(recipe)
    if not os.path.lexists(path):
        if path in [Path("recipes", f"{name}.yaml") for name in names()]:  # where they once lay
            message = f"{recipe} is now the recipe {path.stem}: the old path goes with the next version."
            warnings.warn(message, FutureWarning, stacklevel=2)
            return FOLDER / path.name
        advice = did_you_mean(path.stem, names(), f"pass a YAML file, or one of {', '.join(names())}.")
        raise RankriseError(f"{str(recipe)!r} is not a recipe: {advice}")
    return path


def settings_in(recipe: str | Path) -> dict[str, Any]:
    """The settings that a recipe gives, by name."""
    return {name: value for name, value in _read(find(recipe)).items() if name not in ("about", "choices")}


def refuse_other_command(recipe: str | Path, toy: bool) -> None:
    """Refuse a recipe of the package that is for toy runs where they are not run, and the reverse."""
    said = about(recipe) if str(recipe) in names() else None
    if said is not None and said.command.startswith("rankrise toy") is not toy:
        raise RankriseError(f"the recipe {recipe} is for another command: run '{said.command}'.")


def choices_in(recipe: str | Path) -> dict[str, dict[str, Any]]:
    """The runs that a recipe lists under `choices`: of each its name, and the settings that it has otherwise.

    >>> choices_in("vit-cifar10-choices")["initialisation-normal"]
    {'initialisation': 'normal', 'qkv_bias': True}
    """
    table = _read(find(recipe)).get("choices", {})
    if not isinstance(table, dict) or not all(isinstance(one, dict | None) for one in table.values()):
        raise RankriseError(
            f"the recipe {recipe} says 'choices' in another form: give each a name, and under it settings."
        )
    return {str(name): dict(changes or {}) for name, changes in table.items()}


def about(recipe: str | Path) -> About | None:
    """What a recipe says of itself; None where it says nothing."""
    said = _read(find(recipe)).get("about")
    if said is None:
        return None
    known = [field.name for field in fields(About)]
    if not isinstance(said, dict) or not all(isinstance(text, str) for text in said.values()):
        raise RankriseError(f"the recipe {recipe} says 'about' in another form: give texts for {known}.")
    try:
        return About(**said)
    except TypeError as error:
        raise RankriseError(
            f"the recipe {recipe} has {', '.join(map(str, said)) or 'nothing'} under 'about': give "
            f"{', '.join(known)}."
        ) from error


def _read(path: Path) -> dict[Any, Any]:
    """The 'name: value' pairs of a YAML file that does not ask for more memory than it fills."""
    import yaml

    try:
        text = _text(path)
        _refuse_nesting(path, yaml.parse(text, yaml.SafeLoader))
        tree = yaml.compose(text, yaml.SafeLoader)
        recipe = yaml.safe_load(text)
        repr(recipe)  # ValueError: a number, in hexadecimals say, of more digits than Python prints
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RankriseError(f"the recipe {path} cannot be read ({why}): pass a YAML file.") from error
    except (yaml.YAMLError, ValueError) as error:
        if isinstance(error, RankriseError):
            raise
        raise RankriseError(
            f"the recipe {path} is not YAML ({first_line(error)}): write one 'name: value' per line."
        ) from error
    if not isinstance(recipe, dict):
        raise RankriseError(f"the recipe {path} holds no settings: write one 'name: value' per line.")
    lines: dict[Any, int] = {}
    for key, _ in tree.value:  # of a name given twice, YAML keeps the last
        line = key.start_mark.line + 1
        if key.value in lines:
            raise RankriseError(
                f"the recipe {path} gives {key.value} twice, in lines {lines[key.value]} and {line}: keep "
                "one of them."
            )
        lines[key.value] = line
    return recipe


def _text(path: Path) -> str:
    """The text of a plain file that is no larger than a recipe is."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise RankriseError(f"the recipe {path} is not a file: pass a YAML file.")
    with path.open("rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise RankriseError(f"the recipe {path} has more than {LARGEST:,} bytes: pass a file of settings.")
    return content.decode("utf-8")


def _refuse_nesting(path: Path, events: Iterator[Any]) -> None:
    """Refuse aliases, which can make a small file into gigabytes, and lists deeper than any setting has."""
    import yaml

    depth = 0
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            raise RankriseError(f"the recipe {path} has the alias *{event.anchor}: write the value itself.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise RankriseError(
                f"the recipe {path} has lists within lists: write one 'name: value' per line."
            )
