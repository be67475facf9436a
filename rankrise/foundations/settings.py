"""Settings: a frozen dataclass whose fields state their ranges; recipes and flags replace its values."""

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError

Settings = TypeVar("Settings")

Kind = Literal["science", "computation", "record", "machine"]
"""What a setting changes: what is learned (alike runs agree in it); how it is computed, or what is written
down (a resumed run keeps both); or where things lie and how many processes help (free to change)."""

_BOUNDS = {"above": operator.gt, "at least": operator.ge, "at most": operator.le}
_NAMES = {int: "a whole number", float: "a number", bool: "yes or no"}
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True)
class Meaning:
    """A setting's kind, the data that it applies to, its bounds, and its value in records from before it."""

    kind: Kind = "science"
    of: Literal["all", "images", "text", "regression"] = "all"
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    earlier: Any = None


def setting(default: Any, **meaning: Any) -> Any:
    """Declare a field of settings with its default and its `Meaning`."""
    return field(default=default, metadata={"meaning": Meaning(**meaning)})


def meanings(settings: Any) -> dict[str, Meaning]:
    """The meaning of every field of a settings object or class."""
    return {one.name: one.metadata.get("meaning", Meaning()) for one in fields(settings)}


def names_of(settings: Any, *kinds: Kind) -> list[str]:
    """The names of the settings of these kinds."""
    return [name for name, meaning in meanings(settings).items() if meaning.kind in kinds]


def check(settings: Any) -> None:
    """Convert every field to its type and refuse values out of range; for a dataclass's `__post_init__`."""
    types = get_type_hints(type(settings))
    for name, meaning in meanings(settings).items():
        value = converted(name, getattr(settings, name), types[name])
        object.__setattr__(settings, name, value)
        for number in value if isinstance(value, tuple) else (value,):
            for words, within in _BOUNDS.items():
                bound = getattr(meaning, words.replace(" ", "_"))
                if bound is not None and not within(number, bound):
                    raise RankriseError(f"{name} is {in_words(number)}: it must be {words} {bound:g}.")


def replaced(settings: Settings, given: Mapping[str, Any], source: str, kind: str) -> Settings:
    """Replace fields of `settings` by the values that `source` gives, as text or in their own types."""
    known = meanings(settings)
    for name in given:
        if name not in known:
            raise RankriseError(
                f"{source} gives {name!r}, which is not a setting of {kind}: pass one of {', '.join(known)}."
            )
    return replace(settings, **given)  # type: ignore[type-var]


def as_json(settings: Any) -> dict[str, Any]:
    """Every setting as a JSON value."""
    values = asdict(settings).items()
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values}


def converted(name: str, value: Any, wanted: Any) -> Any:
    """`value` in the type `wanted`; lists may be text with commas."""
    if get_origin(wanted) in (Union, UnionType):
        if value is None:
            return None
        wanted = next(one for one in get_args(wanted) if one is not NoneType)
    if get_origin(wanted) is tuple:
        several = value.split(",") if isinstance(value, str) else value
        items = several if isinstance(several, list | tuple) else [several]
        return tuple(converted(name, one, get_args(wanted)[0]) for one in items if str(one).strip())
    value = value.strip() if isinstance(value, str) else value
    if get_origin(wanted) is Literal:
        if value not in get_args(wanted):
            raise RankriseError(f"{name} is {in_words(value)}: choose from {', '.join(get_args(wanted))}.")
        return value
    try:
        if wanted is bool:
            return _WORDS[str(value).lower()]
        if wanted is int and int(value) != float(value):
            raise ValueError
        return wanted(value)
    except (TypeError, ValueError, OverflowError, KeyError):
        raise RankriseError(f"{name} is {in_words(value)}: pass {_NAMES.get(wanted, 'a text')}.") from None


def in_words(value: Any) -> str:
    """A value as a recipe or a flag writes it, such as 0.5,1,1e-8 or yes."""
    if isinstance(value, tuple | list):
        return ",".join(map(in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removesuffix(".0").replace("e-0", "e-") if isinstance(value, float) else str(value)
