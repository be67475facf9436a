"""Settings: a frozen dataclass whose fields state their ranges; recipes and flags replace its values."""

import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError

Settings = TypeVar("Settings")

Kind = Literal["science", "computation", "record", "machine"]
"""What a setting changes.

- science: what is learned. Runs are alike only where they agree in it.
- computation: how the same thing is computed. Alike runs may differ in it; a resumed run keeps it.
- record: what is written down. Likewise.
- machine: where things lie and how many processes help. A resumed run may have another value.
"""
Of = Literal["all", "images", "text", "regression"]
"""The kind of data that a setting applies to."""

_NAMES = {int: "a whole number", float: "a number", str: "a text", bool: "yes or no"}
_WORDS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True)
class Meaning:
    """The kind and the range of a setting."""

    kind: Kind = "science"
    of: Of = "all"
    above: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    each_once: bool = False
    """A list must not be empty or repeat a value."""
    earlier: Any = None
    """The value that records written before the setting existed stand for; None: the default."""


def setting(default: Any, **meaning: Any) -> Any:
    """Declare a field of settings with its default and its `Meaning`.

    >>> @dataclass(frozen=True)
    ... class Example:
    ...     layers: int = setting(6, at_least=1)
    ...     folder: str = setting("data", kind="machine")
    ...     def __post_init__(self) -> None:
    ...         check(self)
    >>> names_of(Example, "machine")
    ['folder']
    >>> Example(layers=0)
    Traceback (most recent call last):
    rankrise.RankriseError: layers is 0: it must be at least 1.
    """
    return field(default=default, metadata={"meaning": Meaning(**meaning)})


def meanings(settings: Any) -> dict[str, Meaning]:
    """The meaning of every field of a settings object or class."""
    return {one.name: one.metadata.get("meaning", Meaning()) for one in fields(settings)}


def names_of(settings: Any, *kinds: Kind) -> list[str]:
    """The names of the settings of these kinds."""
    return [name for name, meaning in meanings(settings).items() if meaning.kind in kinds]


def check(settings: Any) -> None:
    """Refuse values out of range, and turn lists into tuples; for a dataclass's `__post_init__`."""
    types = get_type_hints(type(settings))
    for name, meaning in meanings(settings).items():
        value, kind = getattr(settings, name), types[name]
        if get_origin(kind) is tuple:
            value, kind = tuple(value), get_args(kind)[0]
            object.__setattr__(settings, name, value)
        values = value if isinstance(value, tuple) else (value,)
        if get_origin(kind) is Literal and not set(values) <= set(get_args(kind)):
            raise RankriseError(f"{name} is {in_words(value)}: choose from {', '.join(get_args(kind))}.")
        for number in values if kind in (int, float) else ():
            for bound, within, words in (
                (meaning.above, operator.gt, "above"),
                (meaning.at_least, operator.ge, "at least"),
                (meaning.at_most, operator.le, "at most"),
            ):
                if bound is not None and not within(number, bound):
                    raise RankriseError(f"{name} is {in_words(number)}: it must be {words} {bound:g}.")
        if meaning.each_once and (not values or len(set(values)) < len(values)):
            raise RankriseError(f"{name} is {in_words(value) or 'empty'}: give one value or more, each once.")


def replaced(settings: Settings, given: Mapping[str, Any], source: str, kind: str) -> Settings:
    """Replace fields of `settings` by the values that `source` gives, as text or in their own types."""
    types = get_type_hints(type(settings))
    values = {}
    for name, value in given.items():
        if name not in types:
            near = get_close_matches(str(name), types, 1)
            advice = f"did you mean {near[0]}?" if near else f"pass one of {', '.join(types)}."
            raise RankriseError(f"{source} gives {name!r}, which is not a setting of {kind}: {advice}")
        values[name] = converted(f"{source} gives {name} as {value!r}", value, types[name])
    return replace(settings, **values)  # type: ignore[type-var]


def as_json(settings: Any) -> dict[str, Any]:
    """Every setting as a JSON value."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()
    }


def converted(place: str, value: Any, wanted: Any) -> Any:
    """`value` in the type `wanted`; lists may be text with commas. `place` begins the error's sentence.

    >>> converted("--sizes is 2, 3", "2, 3", tuple[int, ...])
    (2, 3)
    >>> converted("--rate is fast", "fast", float)
    Traceback (most recent call last):
    rankrise.RankriseError: --rate is fast: pass a number.
    """
    if get_origin(wanted) in (Union, UnionType):
        wanted = next(one for one in get_args(wanted) if one is not NoneType)
    if get_origin(wanted) is tuple:
        several = value.split(",") if isinstance(value, str) else value
        items = several if isinstance(several, list | tuple) else [several]
        return tuple(converted(place, one, get_args(wanted)[0]) for one in items if one not in ("", " "))
    if get_origin(wanted) is Literal:
        if (word := str(value).strip()) in get_args(wanted):
            return word
        raise RankriseError(f"{place}: choose from {', '.join(get_args(wanted))}.")
    value = value.strip() if isinstance(value, str) else value
    try:
        if wanted is bool:
            return value if isinstance(value, bool) else _WORDS[value.lower()]
        if isinstance(value, bool) or (wanted is int and not isinstance(value, str) and value != int(value)):
            raise TypeError
        return wanted(value)
    except (TypeError, ValueError, OverflowError, KeyError, AttributeError):
        raise RankriseError(f"{place}: pass {_NAMES.get(wanted, 'another value')}.") from None


def in_words(value: Any) -> str:
    """A value as a recipe or a flag writes it.

    >>> in_words((0.5, 1.0, 1e-8)), in_words(True), in_words("gpt2")
    ('0.5,1,1e-8', 'yes', 'gpt2')
    """
    if isinstance(value, tuple | list):
        return ",".join(map(in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removesuffix(".0").replace("e-0", "e-") if isinstance(value, float) else str(value)
