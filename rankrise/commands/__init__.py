"""The command line: each command is a typed function; its parameters and docstring are its flags and help.

To add a command, write the function `name` in `rankrise/commands/name.py` and add the name to `COMMANDS`.
Import heavy modules inside the function, so that `rankrise --help` stays instant.
"""

import errno
import os
import sys
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

from rankrise import RankriseError, __version__
from rankrise.commands.flags import Command, call, summary
from rankrise.show.console import plain_warnings

COMMANDS = (
    *("predict", "flow", "toy", "recipes", "train", "sweep", "watch", "figures", "claims", "report"),
    *("compare", "extract", "shrink", "truncate", "history"),
)

DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
"""Errors of the disk, which carry no file name when a write fails."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and turn errors that users cause into one sentence and exit code 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if "OMP_WAIT_POLICY" not in os.environ:  # spinning threads starve busy machines; OpenMP reads it on load
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # GNU: a few microseconds, for idle machines
    try:
        if words[:1] == ["help"]:
            words = [*words[1:2], "--help"]
        if words and words[0] in COMMANDS:
            with plain_warnings():
                call(words[0], command_of(words[0]), words[1:])
        else:
            _introduce(words[0] if words else "")
        sys.stdout.flush()
    except RankriseError as error:
        _exit(str(error))
    except BrokenPipeError:  # the reader is gone, such as `head`
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(141) from None
    except OSError as error:
        place = error.filename or ("the disk" if error.errno in DISK_ERRORS else None)
        if place is None:
            raise
        _exit(f"{place} cannot be used: {error.strerror}.")
    except KeyboardInterrupt:
        _exit("interrupted.", 130)


def command_of(name: str) -> Command:
    """Import a command's function.

    >>> command_of("train").__name__
    'train'
    """
    command: Command = getattr(import_module(f"rankrise.commands.{name}"), name)
    return command


def _introduce(word: str) -> None:
    """Answer `rankrise`, `rankrise --help`, `rankrise --version` and a mistyped command."""
    if word == "--version":
        print(f"rankrise {__version__}")
    elif word in ("", "-h", "--help"):
        print("usage: rankrise COMMAND ...\n\nGradual rank increase: predict it, watch it, use it.\n")
        for name in COMMANDS:
            text = textwrap.fill(summary(command_of(name)), 78, subsequent_indent=" " * 12)
            print(f"  {name:<9} {text}")
        print("\n'rankrise COMMAND --help' explains a command.")
    else:
        near = get_close_matches(word, COMMANDS, 1)
        advice = f"did you mean 'rankrise {near[0]}'?" if near else f"pass one of {', '.join(COMMANDS)}."
        raise RankriseError(f"{word!r} is not a command: {advice}")


def _exit(sentence: str, code: int = 2) -> None:
    with suppress(OSError):
        print(f"rankrise: {sentence}", file=sys.stderr)
    raise SystemExit(code) from None
