"""Tell the training step of a checkpoint from its name, by a rule, a pattern or a table."""

import csv
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import index
from pathlib import Path

from rankrise.foundations.errors import RankriseError

_NUMBER = r"(\d+(?:\.\d+)?)(?:([kmb])(?![a-z\d]))?"
_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9}
_WORDS = ("steps?", "checkpoint|ckpt", "iteration|iter", "epoch")


def step_of(name: str) -> int | None:
    """The number after the last "step" in a name; or after "checkpoint", "iteration" or "epoch"; or the only
    number.

    Numbers written as 1e3 or 1,000 and names without a whole number give None.

    >>> names = ["step512", "checkpoint-500", "stage1-step1000-tokens5B", "ckpt_12", "step-0000000010"]
    >>> [step_of(name) for name in names]
    [512, 500, 1000, 12, 10]
    >>> step_of("epoch=3-step=750"), step_of("0042"), step_of("main"), step_of("seed1-size2")
    (750, 42, None, None)
    >>> step_of("step1k"), step_of("step2.5k"), step_of("epoch_1.5"), step_of("model-7b")
    (1000, 2500, None, None)
    >>> step_of("step=1e3"), step_of("step1,000"), step_of("step10,lr1")
    (None, None, 10)
    """
    for word in _WORDS:
        if found := re.findall(rf"(?:{word})[-_=.]?{_NUMBER}(?:([e,])\d)?", name, re.IGNORECASE):
            digits, suffix, more = found[-1]
            step = Decimal(digits) * _SUFFIXES[suffix.lower()]
            return int(step) if not more and step == step.to_integral_value() else None
    numbers = ["".join(found) for found in re.findall(_NUMBER, name, re.IGNORECASE)]
    return int(numbers[0]) if len(numbers) == 1 and numbers[0].isdecimal() else None


def reader_of(steps: str | Path | Mapping[str, int] | None) -> Callable[[str], int | None]:
    """Turn `steps` into a function: a mapping, a CSV file with lines `name,step`, a pattern, or the rule.

    >>> reader_of(r"stage2-.*-step(\\d+)")("stage2-part1-step30-tokens1B"), reader_of({"final": 9})("final")
    (30, 9)
    """
    if steps is None:
        return step_of
    if isinstance(steps, Mapping):
        return {name: index(step) for name, step in steps.items()}.get
    if Path(steps).is_file():
        return _table(Path(steps)).get
    try:
        pattern = re.compile(str(steps))
    except re.error as error:
        raise RankriseError(f"steps is {steps!r}, neither a file nor a pattern: {error}.") from error
    if pattern.groups != 1:
        raise RankriseError(
            f"steps is {steps!r}: pass a pattern with one group around the step's digits, such as "
            r"'stage1-step(\d+)', or the path of a CSV file with lines name,step."
        )

    def read(name: str) -> int | None:
        found = pattern.search(name)
        if found is None:
            return None
        if not (found[1] or "").isdecimal():
            raise RankriseError(f"steps is {steps!r}, whose group holds {found[1]!r} in {name!r}.")
        return int(found[1])

    return read


def _table(path: Path) -> dict[str, int]:
    table = {}
    with path.open(encoding="utf-8-sig", newline="") as file:
        for number, line in enumerate(csv.reader(file), start=1):
            if len(line) == 2 and line[1].strip().isdecimal():
                table[line[0].strip()] = int(line[1])
            elif line and number > 1:  # the first line may be a heading
                raise RankriseError(f"{path} has {','.join(line)!r} in line {number}: expected name,step.")
    return table
