"""A command's parameters as argparse's words and flags.

Parameters before `*` are words, those after it flags. `list[str]` takes several words, or a flag several
times. `Annotated[Mapping[str, Any], SomeSettings]` becomes one flag per field of that dataclass; the command
gets a dictionary of those that were given. Every command has `--json`, explained in its Args.
"""

import argparse
import inspect
import re
import textwrap
from collections.abc import Callable, Generator, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

import docstring_parser

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.settings import converted, in_words

Command = Callable[..., Generator[Any, None, None]]
"""It yields what `--json` prints; without that flag it goes on, and prints for people."""
PLACEHOLDERS = {int: "N", float: "X", bool: "yes|no", Path: "PATH", tuple: "A,B,..."}


def parsed(name: str, command: Command, words: Sequence[str]) -> dict[str, Any]:
    """Read the words of the command line as values of a command's parameters."""
    # --log10-alpha is --log10_alpha
    spelled = [re.sub(r"^--[\w-]+", lambda flag: "--" + flag[0][2:].replace("-", "_"), one) for one in words]
    texts = vars(parser_of(name, command).parse_intermixed_args(spelled))

    def read(hints: dict[str, Any]) -> dict[str, Any]:
        given = {one: hint for one, hint in hints.items() if one in texts}
        return {one: converted(_flag(one), texts[one], hint) for one, hint in given.items()}

    given = read({"json": bool})
    for parameter, hint in get_type_hints(command, include_extras=True).items():
        if get_origin(hint) is Annotated:
            given[parameter] = read(get_type_hints(get_args(hint)[1]))
        else:
            given |= read({parameter: hint})
    return given


def parser_of(name: str, command: Command) -> argparse.ArgumentParser:
    """The parser of a command; it leaves out what is not given."""
    documented = docstring_parser.parse(command.__doc__ or "")
    texts = {one.arg_name: one.description or "" for one in documented.params}
    paragraphs = [summary(command), *(documented.long_description or "").split("\n\n")]
    parser = Parser(
        prog=f"rankrise {name}",
        description="\n\n".join(textwrap.fill(one, 78) for one in paragraphs),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    parser._negative_number_matcher = re.compile(r"-\d+(\.\d*)?(e[+-]?\d+)?$")  # Python 3.11 lacks -1e3
    usage = [parser.prog]
    hints = get_type_hints(command, include_extras=True)
    for one in inspect.signature(command).parameters.values():
        hint, text = hints[one.name], texts.get(one.name, "")
        if get_origin(hint) is Annotated:
            settings = get_args(hint)[1]
            about, kinds = docstring_parser.parse_from_object(settings), get_type_hints(settings)
            group = parser.add_argument_group(one.name, about.short_description)
            meant = {each.arg_name: each.description or "" for each in about.params}
            for field in fields(settings):
                _add_flag(group, field.name, kinds[field.name], field.default, meant.get(field.name, ""))
        elif hint is bool:
            parser.add_argument(f"--{one.name}", action="store_true", help=_help(text))
        elif one.kind is one.KEYWORD_ONLY:
            _add_flag(parser, one.name, hint, one.default, text)
            usage += [f"--{one.name} {one.name.upper()}"] if one.default is one.empty else []
        else:
            word, several, optional = one.name.upper(), get_origin(hint) is list, one.default is None
            usage.append(f"{word}..." if several else f"[{word}]" if optional else word)
            count = "+" if several else "?" if optional else None
            parser.add_argument(one.name, metavar=word, nargs=count, help=_help(text))
    parser.add_argument("--json", action="store_true", help=_help(texts["json"]))
    parser.usage = " ".join([*usage, "[flags]"])
    return parser


def summary(command: Command) -> str:
    """The first line of a command's docstring."""
    return (inspect.getdoc(command) or "").partition("\n")[0]


class Parser(argparse.ArgumentParser):
    """argparse's parser, whose errors are a `RankriseError`."""

    def error(self, message: str) -> NoReturn:
        """Raise the error, and point to the help."""
        raise RankriseError(f"{message}: see '{self.prog} --help'.")


def _add_flag(parser: Any, name: str, hint: Any, default: Any, text: str) -> None:
    if get_origin(hint) in (Union, UnionType):
        hint = next(one for one in get_args(hint) if one is not NoneType)
    kind = get_origin(hint) or hint
    shown = "" if default in (None, "", (), inspect.Parameter.empty) else f" (default: {in_words(default)})"
    parser.add_argument(
        _flag(name),
        dest=name,
        metavar="{" + ",".join(get_args(hint)) + "}" if kind is Literal else PLACEHOLDERS.get(kind, "TEXT"),
        action="append" if kind is list else "store",
        required=default is inspect.Parameter.empty,
        help=_help(text + shown),
    )


def _flag(name: str) -> str:
    """`for_` is --for, a word that Python keeps to itself."""
    return f"--{name.removesuffix('_')}"


def _help(text: str) -> str:
    text = " ".join(text.split())
    return (text[:1].upper() + text[1:]).replace("%", "%%")
