"""Recipes as YAML files: those that come with the package, by name, and a user's own, by path."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError, first_line

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The recipes that come with the package."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(recipe: str | Path) -> Path:
    """The file of a recipe: one of the package by its name, or any by its path."""
    path = FOLDER / f"{recipe}.yaml" if str(recipe) in names() else Path(recipe)
    if not path.is_file():
        raise RankriseError(
            f"{str(recipe)!r} is not a recipe: pass a YAML file, or one of {', '.join(names())}."
        )
    return path


def settings_in(recipe: str | Path) -> dict[str, Any]:
    """The settings of a recipe, by name."""
    return {name: value for name, value in _read(recipe).items() if name not in ("about", "choices")}


def choices_in(recipe: str | Path) -> dict[str, dict[str, Any]]:
    """The runs that a recipe lists under `choices`, by name, with the settings that they change."""
    table = _read(recipe).get("choices", {})
    return {str(name): dict(changes or {}) for name, changes in table.items()}


def about(recipe: str | Path) -> dict[str, str]:
    """What a recipe reproduces, its command, how long it takes, what it reaches and what data it needs."""
    return dict(_read(recipe).get("about", {}))


def refuse_others(folder: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to resume the run in a folder with other settings, by the first that differs."""
    for name, value in wanted.items():
        if found.get(name) != value:
            raise RankriseError(
                f"{folder} holds a run with {name} {found.get(name)}, not {value}: pass the same settings to "
                "resume it, or another folder."
            )


def _read(recipe: str | Path) -> dict[Any, Any]:
    """The 'name: value' pairs of a YAML file."""
    import yaml

    path = find(recipe)
    try:
        return dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, TypeError, ValueError) as error:
        raise RankriseError(f"the recipe {path} is no table of settings ({first_line(error)}).") from error
