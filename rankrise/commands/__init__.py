"""The command line: each command is a typed function; its parameters and docstring are its flags and help.

To add a command, write the function and list its name and module in `MODULES`. It yields what `--json`
prints, and then prints for people. Import heavy modules inside it, so that `rankrise --help` stays instant.
"""

import os
import sys
import textwrap
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module

from rankrise import RankriseError, __version__
from rankrise.commands.flags import Command, parsed, summary
from rankrise.foundations.files import to_json

MODULES = {
    "theory": ("predict", "flow"),
    "training": ("recipes", "toy", "train", "sweep"),
    "watching": ("watch", "compare", "history"),
    "runs": ("figures", "claims", "report"),
    "adapters": ("truncate", "extract", "shrink"),
}
COMMANDS = {command: module for module, commands in MODULES.items() for command in commands}
"""The module of each command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and turn errors that users cause into one sentence and exit code 2."""
    name, *words = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if "OMP_WAIT_POLICY" not in os.environ:  # spinning threads starve busy machines; OpenMP reads it on load
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # GNU: a few microseconds, for idle machines
    try:
        if name in COMMANDS:
            with warnings.catch_warnings():  # one sentence each, without a line of code
                warnings.showwarning = lambda message, *_, **__: print(f"Warning: {message}", file=sys.stderr)
                command = command_of(name)
                given = parsed(name, command, words)
                as_json = given.pop("json", False)
                steps = command(**given)
                found = next(steps, None)
                if as_json:
                    print(to_json(found))
                    steps.close()
                else:
                    next(steps, None)
        elif name == "--version":
            print(f"rankrise {__version__}")
        elif name in ("-h", "--help"):
            print("usage: rankrise COMMAND ...\n\nGradual rank increase: predict it, watch it, use it.\n")
            for one in COMMANDS:
                print(textwrap.fill(f"  {one:<9} {summary(command_of(one))}", 90, subsequent_indent=" " * 12))
            print("\n'rankrise COMMAND --help' explains a command.")
        else:
            raise RankriseError(f"{name!r} is not a command: pass one of {', '.join(COMMANDS)}.")
        sys.stdout.flush()
    except RankriseError as error:
        _exit(str(error))
    except BrokenPipeError:  # the reader is gone, such as `head`
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        _exit(f"{error}.")
    except KeyboardInterrupt:
        _exit("interrupted.", 130)


def command_of(name: str) -> Command:
    """Import a command's function."""
    command: Command = getattr(import_module(f"rankrise.commands.{COMMANDS[name]}"), name)
    return command


def _exit(sentence: str, code: int = 2) -> None:
    with suppress(OSError):
        print(f"rankrise: {sentence}", file=sys.stderr)
    raise SystemExit(code) from None
