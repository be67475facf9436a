"""The command line: a command is a typed function; its arguments and docstring are the flags and the help.

Each command lives in the module of its name and imports what it needs inside, so that `rankrise --help` is
instant.
"""

import inspect
import json
import re
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from jsonargparse import ArgumentParser, auto_cli

from rankrise import __version__
from rankrise.commands.claims import claims
from rankrise.commands.compare import compare
from rankrise.commands.figures import figures
from rankrise.commands.flow import flow
from rankrise.commands.predict import predict
from rankrise.commands.report import report
from rankrise.commands.sweep import sweep
from rankrise.commands.toy import toy
from rankrise.commands.train import train
from rankrise.commands.watch import watch
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.spelling import nearest

OF_EVERY_COMMAND = ("help", "config", "print_config")
"""The flags that jsonargparse adds."""

COMMANDS: dict[str, Callable[..., None]] = {
    "predict": predict,
    "flow": flow,
    "toy": toy,
    "train": train,
    "sweep": sweep,
    "watch": watch,
    "figures": figures,
    "claims": claims,
    "report": report,
    "compare": compare,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Gradual rank increase: predict it, watch it, use it."""
    given = _spelled_out(list(sys.argv[1:] if arguments is None else arguments))
    if given == ["--version"]:
        print(f"rankrise {__version__}")
        return
    try:
        _refuse_unknown_command(given)
        _refuse_unknown_flag(given)
        auto_cli(
            COMMANDS,  # type: ignore[arg-type]
            args=given,
            prog="rankrise",
            description=main.__doc__,
            as_positional=True,
            parser_class=_Parser,
        )
    except RankriseError as error:
        print(f"rankrise: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError) as error:
        place = error.filename2 or error.filename
        print(f"rankrise: {place} cannot be used ({error.strerror}): pass another path", file=sys.stderr)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        print("rankrise: interrupted; what was finished is kept.", file=sys.stderr)
        raise SystemExit(130) from None


class _Parser(ArgumentParser):
    """jsonargparse's, with one sentence for what cannot be read instead of the usage and a trace of types."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        print(
            f"rankrise: {_one_sentence(message)}; see '{self.prog.replace(' [options]', '')} --help'",
            file=sys.stderr,
        )
        raise SystemExit(2)


def _one_sentence(message: str) -> str:
    """What jsonargparse has to say, for a user.

    >>> _one_sentence("Parser key \\"epochs\\":  - Expected a <class 'float'> \\n Given value: abc")
    '--epochs is abc: pass a number'
    >>> _one_sentence("Unrecognized arguments: --fast")
    'Unrecognized arguments: --fast'
    """
    key, given = re.search(r'[Kk]ey "([^"]+)"', message), re.search(r"(?:Given|Got) value: (.*)", message)
    type_name = re.search(r"Expected an? <class '(int|float|bool)'>", message)
    choices = re.search(r"Literal\[(.*?)\]", message)
    if key and given and (type_name or choices):
        kinds = {"int": "a whole number", "float": "a number", "bool": "yes or no"}
        wanted = kinds[type_name[1]] if type_name else f"one of {choices[1]}" if choices else ""
        return f"--{key[1]} is {given[1]}: pass {wanted}"
    return re.sub(r"(required: )\w+\.", r"\1", " ".join(message.split())).rstrip(".")


def _refuse_unknown_command(given: list[str]) -> None:
    """Name a command that is none, and the one that may be meant.

    >>> _refuse_unknown_command(["trian", "recipe.yaml"])
    Traceback (most recent call last):
    rankrise.RankriseError: trian is no command: did you mean 'rankrise train'?
    """
    if given and not given[0].startswith("-") and given[0] not in COMMANDS:
        meant = nearest(given[0], list(COMMANDS))
        advice = f"did you mean 'rankrise {meant}'?" if meant else f"pass one of {', '.join(COMMANDS)}"
        raise RankriseError(f"{given[0]} is no command: {advice}")


def _refuse_unknown_flag(given: list[str]) -> None:
    """Name the first flag that the command does not have. jsonargparse would not where a command takes any
    number of words: it counts what follows the flag among them.

    >>> _refuse_unknown_flag(["train", "recipe.yaml", "--initialization_scale=0.1"])
    Traceback (most recent call last):
    rankrise.RankriseError: --initialization_scale is no flag of 'rankrise train': did you mean
    --initialisation_scale?
    """
    command = COMMANDS.get(given[0]) if given else None
    if command is None:
        return
    parameters = inspect.signature(command).parameters.values()
    known = [one.name for one in parameters if one.default is not one.empty] + [*OF_EVERY_COMMAND]
    for word in given:
        name = word.partition("=")[0].removeprefix("--").removesuffix("+").replace("-", "_")
        if word.startswith("--") and name not in known:
            meant = nearest(name, known)
            advice = f"did you mean --{meant}?" if meant else f"see 'rankrise {given[0]} --help'"
            if command is sweep and name in inspect.signature(train).parameters:
                advice = f"pass --set {name}=VALUE"
            raise RankriseError(f"--{name} is no flag of 'rankrise {given[0]}': {advice}")


def _spelled_out(given: list[str]) -> list[str]:
    """The arguments as jsonargparse wants them: `--all-matrices`, a flag that takes yes or no, spelled
    `--all_matrices=true`, and `--set`, which may be given several times, spelled `--set+`.

    >>> _spelled_out(["compare", "before", "after", "--all-matrices", "--json"])
    ['compare', 'before', 'after', '--all_matrices=true', '--json=true']
    >>> _spelled_out(["watch", "run", "--json", "true"])
    ['watch', 'run', '--json=true']
    >>> _spelled_out(["sweep", "recipe.yaml", "--set", "layers=1,2", "--set=heads=4"])
    ['sweep', 'recipe.yaml', '--set+', 'layers=1,2', '--set+=heads=4']
    """
    command = COMMANDS.get(given[0]) if given else None
    if command is None:
        return given
    parameters = inspect.signature(command).parameters.values()
    switches = {f"--{parameter.name}" for parameter in parameters if parameter.annotation is bool}
    repeated = {f"--{parameter.name}" for parameter in parameters if parameter.annotation == list[str] | None}
    words: list[str] = []
    for word in given:
        name, equals, value = word.partition("=")
        if words and words[-1].removesuffix("=true") in switches and word in ("true", "false"):
            words[-1] = f"{words[-1].removesuffix('=true')}={word}"
            continue
        if name.startswith("--"):
            name = "--" + name[2:].replace("-", "_") + ("+" if name in repeated else "")
        words.append(f"{name}=true" if name in switches and not equals else name + equals + value)
    takes_many = any(parameter.annotation == list[str] for parameter in parameters)
    return _listed(words) if takes_many else words


def _listed(words: list[str]) -> list[str]:
    """The words that belong to no flag as one JSON list, which is how jsonargparse takes any number of them.

    >>> _listed(["report", "runs/a", "runs/b", "--out", "page.html"])
    ['report', '--out', 'page.html', '["runs/a", "runs/b"]']
    """
    command, *rest = words
    flags: list[str] = []
    many: list[str] = []
    value_follows = False
    for word in rest:
        is_flag = word.startswith("-")
        (flags if is_flag or value_follows else many).append(word)
        value_follows = is_flag and "=" not in word
    return [command, *flags, *([json.dumps(many)] if many else [])]
