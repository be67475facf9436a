"""Settings: a frozen dataclass whose fields say what they are, and whose values recipes and flags replace."""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.spelling import did_you_mean
from rankrise.foundations.text import without_middle

Settings = TypeVar("Settings")

Kind = Literal["science", "computation", "record", "machine"]
"""What a setting changes.

- science: what is learned. Runs are alike only where they agree in it.
- computation: how the same thing is computed. Alike runs may differ in it; a run keeps it when it is resumed.
- record: what is written down. Likewise.
- machine: where things lie and how many processes help. A run may be resumed with another value.
"""
Of = Literal["all", "images", "text", "regression"]
"""The data for which a setting says something."""

LARGEST = {int: 2**63 - 1, float: sys.float_info.max}
"""What torch can hold."""
WORDS = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    str: ("a text", "names"),
    bool: ("yes or no", "yes and no"),
}
"""What a user is asked for, by type: one, and several."""


@dataclass(frozen=True)
class Meaning:
    """What a field says of itself."""

    kind: Kind = "science"
    of: Of = "all"
    above: float | None = None
    """Each number is greater than this."""
    at_least: float | None = None
    at_most: float | None = None
    each_once: bool = False
    """Of a list: it has one value or more, and none of them twice."""
    earlier: Any = None
    """What it was in records written before it became a setting; None: its default."""


def setting(
    default: Any,
    *,
    kind: Kind = "science",
    of: Of = "all",
    above: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    each_once: bool = False,
    earlier: Any = None,
) -> Any:
    """A field of settings with its default and what it says of itself: see `Meaning`.

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
    rankrise.RankriseError: layers is 0: pass a whole number of 1 or more.
    """
    meaning = Meaning(kind, of, above, at_least, at_most, each_once, earlier)
    return field(default=default, metadata={"meaning": meaning})


def meanings(settings: Any) -> dict[str, Meaning]:
    """What every field of settings, an object or its class, says of itself."""
    return {one.name: one.metadata.get("meaning", Meaning()) for one in fields(settings)}


def names_of(settings: Any, *kinds: Kind) -> list[str]:
    """The settings that are of one of these kinds."""
    return [name for name, meaning in meanings(settings).items() if meaning.kind in kinds]


def check(settings: Any) -> None:
    """Refuse values that the fields do not allow; lists become tuples. For a dataclass's `__post_init__`."""
    types = get_type_hints(type(settings))
    for name, meaning in meanings(settings).items():
        wanted, value = types[name], getattr(settings, name)
        many = get_origin(wanted) is tuple
        if many:
            wanted, value = get_args(wanted)[0], tuple(value)
            object.__setattr__(settings, name, value)
        values = value if many else (value,)
        if get_origin(wanted) is Literal:
            _check_words(name, values, get_args(wanted))
        if wanted in (int, float):
            _check_numbers(name, values, wanted, meaning, many)
        if meaning.each_once and (not values or len(set(values)) < len(values)):
            shown = ", ".join(map(str, values)) or "empty"
            raise RankriseError(f"{name} is {shown}: pass one or more, each once.")


def _check_words(name: str, words: Iterable[str], known: Iterable[str]) -> None:
    for word in words:
        if word not in known:
            raise RankriseError(f"{name} is {word!r}, which is not known: choose from {', '.join(known)}.")


def _check_numbers(
    name: str, numbers: Iterable[float], kind: type[int] | type[float], meaning: Meaning, many: bool
) -> None:
    """Refuse a number that is out of its range or, without one, too large for 64 bits."""
    above, at_least, at_most = meaning.above, meaning.at_least, meaning.at_most
    if at_most is None:
        at_most = LARGEST[kind]
    low = f" above {above:g}" if above is not None else ""
    low = f" of {at_least:g} or more" if at_least is not None else low
    for number in numbers:
        enough = (above is None or number > above) and (at_least is None or number >= at_least)
        if enough and number <= at_most:
            continue
        asked = f"{'whole ' if kind is int else ''}number"
        asked = f"{asked}s{low}" if many else f"a {asked}{low}"
        asked += f", at most {at_most:g}" if number > at_most else ""
        shown = str(number).removesuffix(".0")
        raise RankriseError(f"{name} {'has' if many else 'is'} {shown}: pass {asked}.")


def replaced(settings: Settings, given: Mapping[str, Any], source: str, kind: str) -> Settings:
    """`settings`, a dataclass, with the values that `source` gives, as text or as values of their types.

    >>> @dataclass(frozen=True)
    ... class Example:
    ...     sizes: tuple[int, ...] = (1,)
    ...     rate: float = 0.5
    >>> replaced(Example(), {"sizes": "2, 3", "rate": 1}, "an example", "an example")
    Example(sizes=(2, 3), rate=1.0)
    """
    types = get_type_hints(type(settings))
    values = {name: getattr(settings, name) for name in meanings(settings)}
    for name, value in given.items():
        if name not in values:
            advice = did_you_mean(str(name), values, f"pass one of {', '.join(values)}.")
            raise RankriseError(f"{source} gives {brief(name)}, which is not a setting of {kind}: {advice}")
        values[name] = converted(f"{source} gives {name} as {brief(value)}", value, types[name])
    return type(settings)(**values)


def as_json(settings: Any) -> dict[str, Any]:
    """Every setting, as JSON has it."""
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(settings).items()
    }


def converted(said: str, value: Any, wanted: Any) -> Any:
    """`value` in the type `wanted`; lists may be written as text with commas. Where it cannot be, `said`
    begins the sentence.

    >>> converted("--sizes is 2, 3", "2, 3", tuple[int, ...])
    (2, 3)
    >>> converted("--rate is fast", "fast", float)
    Traceback (most recent call last):
    rankrise.RankriseError: --rate is fast: pass a number.
    """
    many = get_origin(wanted) is tuple
    kind = get_args(wanted)[0] if many else wanted
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    plain = str if choices else kind
    try:
        items = value if many else [value]
        if isinstance(items, str):
            items = [item for item in items.split(",") if item.strip()]
        values = [_plain(item, plain) for item in (items if isinstance(items, list | tuple) else [items])]
    except (TypeError, ValueError, OverflowError) as error:
        one, several = WORDS[plain]
        raise RankriseError(f"{said}: pass {f'a list of {several}' if many else one}.") from error
    if not choices or set(values) <= set(choices):
        return tuple(values) if many else values[0]
    wrong = next(item for item in values if item not in choices)
    known = f"pass {'some' if many else 'one'} of {', '.join(choices)}."
    raise RankriseError(f"{said}: {did_you_mean(wrong, choices, known)}")


def brief(value: Any) -> str:
    """A value as an error shows it.

    >>> brief("many"), len(brief("x" * 10**6))
    ("'many'", 80)
    """
    return without_middle(repr(value), most=80)


def in_words(value: Any) -> str:
    """A value as a recipe or a flag has it.

    >>> in_words((0.5, 1.0, 1e-8)), in_words(True), in_words("gpt2")
    ('0.5,1,1e-8', 'yes', 'gpt2')
    """
    if isinstance(value, tuple | list):
        return ",".join(map(in_words, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value).removesuffix(".0").replace("e-0", "e-") if isinstance(value, float) else str(value)


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
