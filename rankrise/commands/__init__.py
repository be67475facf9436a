"""The command line: a command is a typed function; its parameters and docstring are the flags and the help.

To add one, write the function `name` in `rankrise/commands/name.py`, which imports what it needs inside so
that `rankrise --help` is instant, and put the name into `COMMANDS`.
"""

import errno
import os
import re
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from typing import TextIO

from rankrise import __version__
from rankrise.commands.arguments import Command, Parser, call, summary
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.spelling import nearest
from rankrise.foundations.text import printable, without_middle
from rankrise.show.console import plain_warnings, safe_output

COMMANDS = (
    "predict",
    "flow",
    "toy",
    "recipes",
    "train",
    "sweep",
    "watch",
    "figures",
    "claims",
    "report",
    "compare",
    "extract",
    "shrink",
    "truncate",
    "advise",
    "history",
)

EPILOG = (
    "'rankrise help COMMAND' explains a command, and so does --help after it. --run is the folder of a run, "
    "which is resumed if it exists; --out is where a command writes its results."
)

OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
"""Troubles that come without the name of a file: no space, beyond a quota or a limit, read-only, broken."""

OUT_OF_MEMORY = re.compile("can't allocate memory|out of memory|not enough memory|size calculation overflow")
"""What torch says, on a CPU and on a GPU, where there is no memory for a tensor, or could never be."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Gradual rank increase: predict it, watch it, use it."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    _let_threads_sleep()
    _open_what_is_closed()
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    try:
        if words[:1] == ["help"]:
            words = [*words[1:2], "--help"]
        if not words or words[0].startswith("-"):
            _introduce(words)
        else:
            name, *rest = words
            with safe_output(), plain_warnings():
                call(name, command_of(name), rest)
        sys.stdout.flush()
    except RankriseError as error:
        raise _ended(printable(str(error))) from None
    except BrokenPipeError:
        lost = [stream for stream in (sys.stdout, sys.stderr) if _has_lost_its_reader(stream)]
        if not lost:
            raise
        for stream in lost:
            _discard(stream)
        raise SystemExit(128 + signal.SIGPIPE) from None
    except OSError as error:
        if "temporary directory" in str(error.strerror):  # Python has looked for one that can be written
            raise _ended(f"{error.strerror}: free the disk, raise its limits, or set TMPDIR.") from None
        place = error.filename2 or error.filename or (error.errno in OF_THE_DISK and "the disk")
        if not place:
            raise
        where = without_middle(printable(str(place)))
        raise _ended(f"{where} cannot be used ({error.strerror}): pass another path.") from None
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not OUT_OF_MEMORY.search(str(error)):
            raise
        raise _ended("this does not fit into the memory of this machine: pass smaller sizes.") from None
    except KeyboardInterrupt:
        raise _ended("interrupted.", 130) from None


def command_of(name: str) -> Command:
    """The function of a command.

    >>> command_of("trian")
    Traceback (most recent call last):
    rankrise.RankriseError: 'trian' is not a command: did you mean 'rankrise train'?
    """
    if name not in COMMANDS:
        meant = nearest(name, COMMANDS)
        advice = f"did you mean 'rankrise {meant}'?" if meant else f"pass one of {', '.join(COMMANDS)}."
        raise RankriseError(f"{name!r} is not a command: {advice}")
    command: Command = getattr(import_module(f"rankrise.commands.{name}"), name)
    return command


def _ended(sentence: str, code: int = 2) -> SystemExit:
    """The end of a command that failed, its sentence printed where that is possible."""
    try:
        print(f"rankrise: {sentence}", file=sys.stderr, flush=True)
    except OSError:
        _discard(sys.stderr)
    try:
        sys.stdout.flush()
    except OSError:
        _discard(sys.stdout)
    return SystemExit(code)


def _let_threads_sleep() -> None:
    """Have torch's threads sleep soon while they wait for each other, unless the user says how they wait: on
    a busy machine, those that spin starve those that they wait for. OpenMP reads it when torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "passive"
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # GNU's: a few microseconds, for idle machines


def _discard(stream: TextIO) -> None:
    """Throw away what an output that is full has not taken, so that Python's flush at its end succeeds."""
    with suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_what_is_closed() -> None:
    """Have the three standard streams, also where the shell closed one (`>&-`): the next file that is opened,
    of a run perhaps, would get its number, and with it what libraries print."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # it gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _has_lost_its_reader(stream: TextIO) -> bool:
    """Whether the reader of an output is gone, as `head` may be; other pipes may break as well."""
    poll = select.poll()
    poll.register(stream, 0)
    return bool(poll.poll(0))


def _introduce(words: Sequence[str]) -> None:
    """Answer `rankrise` alone, `rankrise --help` and `rankrise --version`."""
    parser = Parser(prog="rankrise", description=main.__doc__, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"rankrise {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name in COMMANDS:
        commands.add_parser(name, help=summary(command_of(name)).replace("%", "%%"))
    if not words:
        parser.print_help()
    elif words[0] not in ("-h", "--help", "--version"):
        meant = nearest(words[0], ("--help", "--version"))
        advice = f": did you mean {meant}?" if meant else ""
        parser.error(f"{without_middle(words[0])} is not a flag of 'rankrise'{advice}")
    else:
        parser.parse_args(words[:1])
