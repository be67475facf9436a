"""A command's parameters as argparse's words and flags.

A parameter without a default is a word, one with a default a flag (before a `/`, an optional word).
`list[str]` takes any number of words, or repeats of the flag. `Annotated[Mapping[str, Any], SomeSettings]`
becomes one flag per field of that dataclass; the command gets a dictionary of those that were given.
"""

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import docstring_parser

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import converted, in_words

Command = Callable[..., None]


def call(name: str, command: Command, words: Sequence[str]) -> None:
    """Call a command with the words of the command line."""
    given = parsed(name, command, words)
    unnamed = [one for one in _parameters(command) if one.kind is one.POSITIONAL_ONLY]
    values = [given.pop(one.name, one.default) for one in unnamed]
    command(*values, **given)


def parsed(name: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """Read the words of the command line as values of a command's parameters.

    >>> def example(run: Path, often: bool = False, sizes: tuple[int, ...] = (1,)) -> None: ...
    >>> parsed("example", example, ["--sizes", "2,3", "--often", "runs/a"])
    {'sizes': (2, 3), 'often': True, 'run': PosixPath('runs/a')}
    >>> parsed("example", example, ["runs/a", "--size=2"])
    Traceback (most recent call last):
    rankrise.RankriseError: --size is not a flag: did you mean --sizes? See 'rankrise example --help'.
    """
    parser = parser_of(name, command)
    given = vars(parser.parse_intermixed_args(_spelled(words, parser)))
    for one in _parameters(command):
        if get_origin(one.annotation) is Annotated:
            names = [field.name for field in fields(get_args(one.annotation)[1])]
            given[one.name] = {name: given.pop(name) for name in names if name in given}
    return given


def summary(command: Command) -> str:
    """The first sentence of a command's docstring."""
    return " ".join((docstring_parser.parse(command.__doc__ or "").short_description or "").split())


def parser_of(name: str, command: Command) -> argparse.ArgumentParser:
    """The parser of a command; it leaves out what is not given."""
    documented = docstring_parser.parse(command.__doc__ or "")
    texts = {one.arg_name: one.description or "" for one in documented.params}
    description = "\n\n".join(filter(None, (summary(command), documented.long_description)))
    parser = Parser(prog=f"rankrise {name}", description=description, argument_default=argparse.SUPPRESS)
    words = []
    for one in _parameters(command):
        hint, text = one.annotation, texts.get(one.name, "")
        if get_origin(hint) is Annotated:
            _add_settings(parser, get_args(hint)[1], one.name)
        elif hint is bool:
            parser.add_argument(f"--{one.name}", action="store_true", help=_help(text))
        elif one.default is one.empty or one.kind is one.POSITIONAL_ONLY:
            word, many, optional = one.name.upper(), get_origin(hint) is list, one.default is not one.empty
            words.append(f"[{word}]" if optional else f"{word}..." if many else word)
            count = "?" if optional else "+" if many else None
            parser.add_argument(one.name, metavar=word, help=_help(text), type=_reader(hint), nargs=count)
        else:
            _add_flag(parser, one.name, hint, one.default, text)
    parser.usage = " ".join([parser.prog, *words, "[flags]"])
    return parser


def _parameters(command: Command) -> Iterable[inspect.Parameter]:
    return inspect.signature(command, eval_str=True).parameters.values()


class Parser(argparse.ArgumentParser):
    """argparse's parser, with paragraphs in descriptions and one-sentence errors."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False, formatter_class=_Paragraphs)

    def error(self, message: str) -> NoReturn:
        """Raise the error, and point to the help."""
        message = re.sub(r"^argument (\S+): expected .*argument", r"\1 needs a value", message)
        message = re.sub(r"^argument \S+: ", "", message).rstrip(".")
        raise RankriseError(f"{message}{'' if message.endswith('?') else '.'} See '{self.prog} --help'.")


class _Paragraphs(argparse.HelpFormatter):
    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return "\n\n".join(textwrap.fill(" ".join(part.split()), width) for part in text.split("\n\n"))


def _add_settings(parser: argparse.ArgumentParser, settings: type, name: str) -> None:
    documented, hints = docstring_parser.parse_from_object(settings), get_type_hints(settings)
    texts = {one.arg_name: one.description or "" for one in documented.params}
    group = parser.add_argument_group(name, documented.short_description)
    for field in fields(settings):
        _add_flag(group, field.name, hints[field.name], field.default, texts.get(field.name, ""))


def _add_flag(parser: Any, name: str, hint: Any, default: Any, text: str) -> None:
    many = any(get_origin(one) is list for one in (hint, *get_args(hint)))
    spelling = f"--{name.rstrip('_')}"
    shown = "" if default in (None, "", ()) else f" (default: {in_words(default)})"
    parser.add_argument(
        spelling,
        dest=name,
        metavar=_placeholder(_plain(hint)),
        help=_help(text, shown),
        action="append" if many else "store",
        type=_reader(hint, spelling),
    )


def _help(text: str, default: str = "") -> str:
    text = " ".join(text.split())
    return (text[:1].upper() + text[1:] + default).replace("%", "%%")


def _reader(hint: Any, spelling: str = "it") -> Callable[[str], Any]:
    """The function that turns a word into the type of its parameter."""
    kind = _plain(hint)
    if kind in (str, Path):
        return kind

    def read(word: str) -> Any:
        try:
            return converted(f"{spelling} is {word}", word, kind)
        except RankriseError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _plain(hint: Any) -> Any:
    """A type without its None, and the type of a list's items."""
    if get_origin(hint) in (Union, UnionType):
        hint = next(one for one in get_args(hint) if one is not NoneType)
    return get_args(hint)[0] if get_origin(hint) is list else hint


def _placeholder(kind: Any) -> str:
    """The value's stand-in in the help."""
    if get_origin(kind) is tuple:
        word = _placeholder(get_args(kind)[0])
        return f"{word},{word}" if word.isalpha() else word
    if get_origin(kind) is Literal:
        return "{" + ",".join(get_args(kind)) + "}"
    return {int: "N", float: "X", bool: "yes|no", Path: "PATH"}.get(kind, "TEXT")


def _spelled(words: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Accept --log10-alpha for --log10_alpha and a negative number as a value; refuse unknown flags."""
    spelled: list[str] = []
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            flag = "--" + flag[2:].replace("-", "_")
            if flag not in parser._option_string_actions:
                near = get_close_matches(flag, parser._option_string_actions, 1)
                advice = f": did you mean {near[0]}?" if near else ""
                parser.error(f"{flag} is not a flag{advice}")
            spelled.append(flag + equals + value)
        elif spelled and re.match(r"-[\d.]", word) and re.fullmatch(r"--\w+", spelled[-1]):
            spelled[-1] += f"={word}"
        else:
            spelled.append(word)
    return spelled
