"""Settings from recipes and flags: a frozen dataclass with some of its values replaced, by name."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.spelling import nearest

Settings = TypeVar("Settings")


def read_recipe(path: str | Path) -> dict[str, Any]:
    """The 'name: value' pairs of a YAML file."""
    import yaml

    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
        recipe = yaml.safe_load(text)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RankriseError(f"the recipe {path} cannot be read ({why}): pass a YAML file") from error
    except yaml.YAMLError as error:
        first = str(error).splitlines()[0]
        raise RankriseError(
            f"the recipe {path} is no YAML ({first}): write one 'name: value' a line"
        ) from error
    if not isinstance(recipe, dict):
        raise RankriseError(f"the recipe {path} holds no settings: write one 'name: value' a line")
    lines: dict[Any, int] = {}
    for key, _ in yaml.compose(text, yaml.SafeLoader).value:  # of a name given twice, YAML keeps the last
        line = key.start_mark.line + 1
        if key.value in lines:
            raise RankriseError(
                f"the recipe {path} gives {key.value} twice, in lines {lines[key.value]} and {line}: keep "
                "one of them"
            )
        lines[key.value] = line
    return recipe


def replaced(settings: Settings, given: Mapping[str, Any], source: str, kind: str) -> Settings:
    """`settings`, a dataclass, with the values that `source` gives, as text or as values of their types.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Example:
    ...     sizes: tuple[int, ...] = (1,)
    ...     rate: float = 0.5
    >>> replaced(Example(), {"sizes": "2, 3", "rate": 1}, "an example", "an example")
    Example(sizes=(2, 3), rate=1.0)
    """
    types = get_type_hints(type(settings))
    values = {field.name: getattr(settings, field.name) for field in fields(settings)}  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in values:
            meant = nearest(str(name), values)
            advice = f"did you mean {meant}?" if meant else f"pass one of {', '.join(values)}"
            raise RankriseError(f"{source} gives {name!r}, which is no setting of {kind}: {advice}")
        values[name] = _converted(name, value, types[name], source)
    return type(settings)(**values)


def as_json(settings: Any) -> dict[str, Any]:
    """Every setting, as JSON has it."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()
    }


def check_words(name: str, words: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a word that is not known."""
    for word in words:
        if word not in known:
            raise RankriseError(f"{name} is {word!r}, which is not known: choose from {', '.join(known)}")


def _converted(name: str, value: Any, wanted: Any, source: str) -> Any:
    """`value` in the type `wanted`; lists may be written as text with commas."""
    many = get_origin(wanted) is tuple
    kind = get_args(wanted)[0] if many else str if get_origin(wanted) is Literal else wanted
    try:
        if many:
            items = [item for item in value.split(",") if item.strip()] if isinstance(value, str) else value
            items = items if isinstance(items, list | tuple) else [items]
            return tuple(_plain(item, kind) for item in items)
        return _plain(value, kind)
    except (TypeError, ValueError) as error:
        word = {int: "whole number", float: "number", str: "text", bool: "yes or no"}[kind]
        asked = (
            f"a list of {word}s".replace("texts", "names") if many else f"a {word}".replace("a yes", "yes")
        )
        raise RankriseError(f"{source} gives {name} as {value!r}: pass {asked}") from error


def _plain(value: Any, kind: type) -> Any:
    if kind is bool:
        return _yes_or_no(value)
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError
    if kind is int and not isinstance(value, str) and value != int(value):
        raise ValueError
    return kind(value.strip()) if isinstance(value, str) else kind(value)


def _yes_or_no(value: Any) -> bool:
    words = {"true": True, "yes": True, "false": False, "no": False}
    if isinstance(value, str) and value.strip().lower() in words:
        return words[value.strip().lower()]
    if not isinstance(value, bool):
        raise TypeError
    return value
