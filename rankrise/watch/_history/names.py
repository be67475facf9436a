"""The training step of a checkpoint, told from its name.

The rule: the number after the last word "step" counts; without one, that after "checkpoint" or "ckpt", then
"iteration" or "iter", then "epoch"; without any of them, the only number in the name. Between the word and
the number may be one of `-_=.`. A number after a word may end in k, M or B: step1.5k is step 1500. A name
that tells no whole number, or writes it otherwise (1e3; 1,000), is left out of the series, and named.
"""

import csv
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.reading import read_bytes

LARGEST_TABLE = 10_000_000
"""Bytes of a table of steps."""

_NUMBER = r"(\d+(?:\.\d+)?)(?:([kmb])(?![a-z\d]))?"
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_WORDS = ("steps?", "checkpoint|ckpt", "iteration|iter", "epoch")

StepOf = Callable[[str], int | None]
"""The step that a name tells, None where it tells none."""


def step_of(name: str) -> int | None:
    """The step that a name tells by the rule.

    >>> names = ["step512", "checkpoint-500", "stage1-step1000-tokens5B", "ckpt_12", "step-0000000010"]
    >>> [step_of(name) for name in names]
    [512, 500, 1000, 12, 10]
    >>> step_of("epoch=3-step=750"), step_of("0042"), step_of("main"), step_of("seed1-size2")
    (750, 42, None, None)
    >>> step_of("step500"), step_of("step1k"), step_of("step2.5k"), step_of("epoch_1.5"), step_of("model-7b")
    (500, 1000, 2500, None, None)
    >>> step_of("step=1e3"), step_of("step1,000"), step_of("step10,lr1")
    (None, None, 10)
    """
    for word in _WORDS:
        if found := re.findall(rf"(?:{word})[-_=.]?{_NUMBER}(?:([e,])\d)?", name, re.IGNORECASE):
            digits, suffix, more = found[-1]
            if more:
                return None
            step = Decimal(digits) * _SUFFIXES[suffix.lower()]
            return int(step) if step == step.to_integral_value() else None
    numbers = ["".join(found) for found in re.findall(_NUMBER, name, re.IGNORECASE)]
    return int(numbers[0]) if len(numbers) == 1 and numbers[0].isdecimal() else None


def reader_of(steps: str | Path | Mapping[str, int] | None) -> StepOf:
    """What tells steps: the rule, a pattern with one group, or a table of names and steps.

    A table is a mapping, or the path of a CSV file with lines `name,step`.

    >>> reader_of(r"stage2-.*-step(\\d+)")("stage2-part1-step30-tokens1B"), reader_of({"final": 9})("final")
    (30, 9)
    """
    if steps is None:
        return step_of
    table = table_of(steps)
    if table is not None:
        return table.get
    if not isinstance(steps, str | Path):
        raise RankriseError(
            f"steps is {steps!r}: pass a pattern with one group, the path of a CSV file with lines "
            "name,step, or a dictionary from names to steps."
        )
    return _by_pattern(str(steps))


def table_of(steps: Any) -> dict[str, int] | None:
    """Names and steps, where it is a mapping or the path of a table; None where it is neither."""
    if isinstance(steps, Mapping):
        return dict(steps)
    return _table(Path(steps)) if isinstance(steps, str | Path) and Path(steps).is_file() else None


def _by_pattern(text: str) -> StepOf:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise RankriseError(
            f"steps is {text!r}, which is neither a file nor a pattern ({error}): pass one such as "
            r"'stage1-step(\d+)'."
        ) from error
    if pattern.groups != 1:
        raise RankriseError(
            f"steps is {text!r}, a pattern with {pattern.groups} groups: pass one with one group around the "
            r"step's digits, such as 'stage1-step(\d+)', or the path of a CSV file with lines name,step."
        )

    def read(name: str) -> int | None:
        found = pattern.search(name)
        if found is None:
            return None
        if not (found[1] or "").isdecimal():
            raise RankriseError(
                f"steps is {text!r}, whose group holds {found[1]!r} in {name!r}: pass one that holds digits "
                "alone."
            )
        return int(found[1])

    return read


def _table(path: Path) -> dict[str, int]:
    try:
        text = read_bytes(path, LARGEST_TABLE).decode("utf-8-sig")
        lines = [line for line in csv.reader(text.splitlines()) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise RankriseError(f"{path} is not a table of steps ({error}): expected lines name,step.") from error
    table: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        if len(line) == 2 and re.fullmatch(r"\s*\d{1,18}\s*", line[1]):
            name, step = line[0].strip(), int(line[1])
            if table.setdefault(name, step) != step:
                raise RankriseError(
                    f"{path} has the steps {table[name]} and {step} for {name!r}: keep one of the lines."
                )
        elif number > 1 or len(line) != 2:
            raise RankriseError(f"{path} has {','.join(line)!r} in line {number}: expected name,step.")
    return table
