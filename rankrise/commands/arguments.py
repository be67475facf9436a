"""The arguments of a command: a typed function with a docstring is its flags and its help.

A parameter without a default is a word of the command line, one with a default is a flag (before a `/`, a
word that may be left out), `list[str]` takes any number of words, and `Annotated[Mapping[str, Any],
SomeSettings]` has a flag for every field of a settings dataclass: the parameter gets those that were given.
"""

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import docstring_parser

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import converted, in_words, meanings
from rankrise.foundations.spelling import nearest
from rankrise.foundations.text import without_middle
from rankrise.recipes.train_settings import TrainSettings

Command = Callable[..., None]

REQUIRED = inspect.Parameter.empty
"""The default of what has none."""

PLACES = ("run", "out")
"""Where a run is kept, to be resumed and read, and where all else is written: one is asked for by the other's
name."""


@dataclass(frozen=True)
class Argument:
    """A word or a flag of a command."""

    name: str
    wanted: Any
    """Its type, without the None of what may be left out."""
    default: Any
    text: str
    parameter: str
    """The function's parameter: its own name, or that of the parameter that takes the settings."""
    is_word: bool = False
    """Whether it is passed without a name."""
    heading: str = ""
    """Of a setting, what its settings are."""

    @property
    def is_setting(self) -> bool:
        """Whether it is a field of a settings dataclass."""
        return self.parameter != self.name

    @property
    def is_switch(self) -> bool:
        """Whether it is a flag without a value; a setting says yes or no, since a recipe may say either."""
        return self.wanted is bool and not self.is_setting

    @property
    def is_many(self) -> bool:
        """Whether it may be given several times."""
        return get_origin(self.wanted) is list

    @property
    def spelling(self) -> str:
        """As an error names it: a flag that Python keeps for itself, as `from_`, without its underscore."""
        return self.name.upper() if self.is_word else f"--{self.name.rstrip('_')}"

    @property
    def help(self) -> str:
        """What it is, and its default where that is a value."""
        text = " ".join(self.text.split())
        text = text[:1].upper() + text[1:]
        if self.default is REQUIRED or self.is_switch or self.default in (None, "", ()):
            return text.replace("%", "%%")
        return f"{text} (default: {in_words(self.default)})".replace("%", "%%")


def call(name: str, command: Command, words: Sequence[str]) -> None:
    """Call a command with what words of the command line say."""
    given = parsed(name, command, words)
    parameters = inspect.signature(command).parameters.values()
    unnamed = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY and one.name in given]
    values = [given.pop(one) for one in unnamed]
    command(*values, **given)


def parsed(name: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """What words of the command line give, by parameter; what they do not give is left out.

    >>> def example(run: Path, often: bool = False, sizes: tuple[int, ...] = (1,)) -> None:
    ...     "An example."
    >>> parsed("example", example, ["--sizes", "2,3", "runs/a", "--often"])
    {'run': PosixPath('runs/a'), 'often': True, 'sizes': (2, 3)}
    >>> parsed("example", example, ["runs/a", "--size=2"])
    Traceback (most recent call last):
    rankrise.RankriseError: --size is not a flag of 'rankrise example': did you mean --sizes?
    """
    arguments = {argument.name: argument for argument in arguments_of(command)}
    parser = parser_of(name, command)
    words = _spelled(words, arguments, parser.prog)
    given, beyond = parser.parse_known_intermixed_args(words)
    if beyond:
        parser.error(f"unexpected argument {beyond[0]!r}")
    values: dict[str, Any] = {one.parameter: {} for one in arguments.values() if one.is_setting}
    for argument in arguments.values():
        if hasattr(given, argument.name):
            value = _value(argument, getattr(given, argument.name), parser)
            if argument.is_setting:
                values[argument.parameter][argument.name] = value
            else:
                values[argument.name] = value
    return values


def parser_of(name: str, command: Command) -> argparse.ArgumentParser:
    """argparse's parser with every argument; it gives text, and leaves out what is not given."""
    long = docstring_parser.parse(command.__doc__ or "").long_description
    description = "\n\n".join(filter(None, (summary(command), long)))
    arguments = list(arguments_of(command))
    words = [_usage(one) for one in arguments if one.is_word]
    parser = Parser(
        prog=f"rankrise {name}",
        usage=" ".join(["%(prog)s", *words, "[flags]"]),
        description=description,
        argument_default=argparse.SUPPRESS,
    )
    groups: dict[str, Any] = {}
    for argument in arguments:
        if argument.is_word:
            count: Any = {"nargs": "+"} if argument.is_many else {"nargs": "?"}
            count = {} if argument.default is REQUIRED and not argument.is_many else count
            parser.add_argument(argument.name, metavar=argument.spelling, help=argument.help, **count)
            continue
        if argument.is_setting and argument.parameter not in groups:
            recipe = any(one.name == "recipe" for one in arguments)
            meant = "Each replaces the recipe's value." if recipe else argument.heading
            groups[argument.parameter] = parser.add_argument_group(argument.parameter, meant)
        how: Any = {"action": "append" if argument.is_many else "store", "metavar": _placeholder(argument)}
        if argument.is_switch:
            how = {"action": "store_true"}
        place = groups[argument.parameter] if argument.is_setting else parser
        place.add_argument(argument.spelling, dest=argument.name, help=argument.help, **how)
    return parser


def summary(documented: Callable[..., Any]) -> str:
    """The first sentence of a command's help, or of what settings are."""
    return " ".join((docstring_parser.parse(documented.__doc__ or "").short_description or "").split())


def arguments_of(command: Command) -> Iterator[Argument]:
    """Every argument of a command, in the order of its parameters."""
    texts = _texts(docstring_parser.parse(command.__doc__ or ""))
    types = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        name, wanted = parameter.name, types[parameter.name]
        if get_origin(wanted) is Annotated:
            settings = get_args(wanted)[1]
            of_fields, meant = get_type_hints(settings), _texts_of_fields(settings)
            for field in fields(settings):
                kind = _without_none(of_fields[field.name])
                yield Argument(
                    field.name, kind, field.default, meant[field.name], name, heading=summary(settings)
                )
        else:
            is_word = parameter.default is REQUIRED or parameter.kind is parameter.POSITIONAL_ONLY
            yield Argument(name, _without_none(wanted), parameter.default, texts.get(name, ""), name, is_word)


class Parser(argparse.ArgumentParser):
    """argparse's, with paragraphs in its descriptions and one sentence for what is wrong."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Paragraphs)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line, and point to the help."""
        lacking = re.fullmatch(r"the following arguments are required: (\w+).*", message)
        empty = re.fullmatch(r"argument (\S+): expected one argument", message)
        if lacking:
            message = f"{lacking[1].upper()} is missing"
        elif empty:
            message = f"{empty[1]} is given without a value"
        see = " See" if message.endswith("?") else "; see"
        raise RankriseError(f"{message}{see} '{self.prog} --help'.")


class _Paragraphs(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = (" ".join(part.split()) for part in text.split("\n\n"))
        return "\n\n".join(textwrap.fill(part, width) for part in parts)


def _spelled(words: Sequence[str], arguments: dict[str, Argument], prog: str) -> list[str]:
    """The words with underscores in the names of flags; a flag that the command does not have is refused.

    A value that begins with a minus, as -1e3, is put behind its flag, since argparse would not see it as one.
    """
    spelled: list[str] = []
    known = [name.rstrip("_") for name, argument in arguments.items() if not argument.is_word]
    for word in words:
        dashed, equals, value = word.partition("=")
        name = dashed.removeprefix("--").replace("-", "_")
        if word in ("-h", "--help") or not word.startswith("-"):
            spelled.append(word)
        elif word.startswith("--"):
            if name not in known:
                meant = _meant(name, arguments, prog)
                raise RankriseError(f"--{without_middle(name)} is not a flag of '{prog}': {meant}")
            spelled.append(f"--{name}{equals}{value}")
        elif spelled and re.fullmatch(r"--\w+", spelled[-1]) and re.match(r"-[\d.]", word):
            spelled[-1] += f"={word}"
        else:
            spelled.append(word)
    return spelled


def _meant(name: str, arguments: dict[str, Argument], prog: str) -> str:
    """What to pass instead of a flag that a command does not have."""
    if "set" in arguments and name in meanings(TrainSettings):
        return f"pass --set {name}=VALUE."
    is_place = name in PLACES or name.startswith("out")  # --output, --out_dir
    place = next((one for one in PLACES if one in arguments), None) if is_place else None
    meant = arguments.get(nearest(name, arguments) or place or "")
    if meant is None:
        return f"see '{prog} --help'."
    return f"pass {meant.spelling} without a flag." if meant.is_word else f"did you mean {meant.spelling}?"


def _value(argument: Argument, given: Any, parser: argparse.ArgumentParser) -> Any:
    """What was given, in its type."""
    if argument.is_switch:
        return given
    if not all(isinstance(one, str) for one in (given if argument.is_many else [given])):
        parser.error(f"{argument.spelling} is given without a value")  # argparse takes "--" for none
    try:
        if argument.is_many or argument.wanted is Path:
            "".join(given).encode()  # tensors are kept in files that have a name in UTF-8 alone
            return given if argument.is_many else Path(given)
        return converted(f"{argument.spelling} is {without_middle(given)}", given, argument.wanted)
    except UnicodeEncodeError:
        parser.error(f"{argument.spelling} is {given!r}, which is not UTF-8: pass another name")
    except RankriseError as error:
        parser.error(str(error).removesuffix("."))


def _usage(word: Argument) -> str:
    """A word in the first line of the help."""
    if word.default is not REQUIRED:
        return f"[{word.spelling}]"
    return f"{word.spelling}..." if word.is_many else word.spelling


def _placeholder(argument: Argument) -> str:
    """What stands for a flag's value in the help."""
    wanted, many = argument.wanted, get_origin(argument.wanted) is tuple
    wanted = get_args(wanted)[0] if many else wanted
    if get_origin(wanted) is Literal and not many:
        return "{" + ",".join(get_args(wanted)) + "}"
    names = {int: "N", float: "X", bool: "yes|no", Path: "PATH"}
    word = names.get(wanted, "TEXT")
    return f"{word},{word}" if many else word


def _without_none(wanted: Any) -> Any:
    """The type of an argument that may be left out."""
    if get_origin(wanted) in (Union, UnionType):
        return next(one for one in get_args(wanted) if one is not NoneType)
    return wanted


@cache
def _texts_of_fields(settings: type) -> dict[str, str]:
    return _texts(docstring_parser.parse_from_object(settings))


def _texts(docstring: docstring_parser.Docstring) -> dict[str, str]:
    return {one.arg_name: one.description or "" for one in docstring.params}
