"""Lines of a record as they are read: those of one step put together, and their numbers put into arrays."""

import math
from typing import Any

import numpy
from numpy.typing import NDArray

from rankrise.record.lines import LEFT_OUT, RESERVED
from rankrise.record.shapes import MOST


def merged(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row for each step, in their order: what was recorded of a step at several times is put together."""
    merged: dict[int, dict[str, Any]] = {}
    for row in rows:
        merged.setdefault(row["step"], {}).update(row)
    return [merged[step] for step in sorted(merged)]


def missing_numbers(rows: list[dict[str, Any]], losses: NDArray[Any] | None) -> list[str]:
    """At which steps something was left out, with the first reason, and at which the loss is not finite, as
    sentences without a full stop. `losses` has that of each row.

    >>> rows = [{"step": 1, "loss": 2.5}, {"step": 2, "left out": {"loss": "loss is 'low': pass a number"}}]
    >>> missing_numbers(rows, numpy.array([2.5, numpy.nan]))
    ["loss was left out at step 2 (loss is 'low': pass a number)"]
    """
    steps: dict[str, list[int]] = {}
    reasons: dict[str, str] = {}
    for row in rows:
        for name, why in row.get(LEFT_OUT, {}).items():
            if name not in row.keys() - RESERVED.keys():  # it may have been given again
                steps.setdefault(name, []).append(row["step"])
                reasons.setdefault(name, why)
    notes = [f"{name} was left out {_at(steps[name])} ({why})" for name, why in reasons.items()]
    given = zip(rows, [] if losses is None else losses.tolist(), strict=False)
    not_finite = [row["step"] for row, loss in given if "loss" in row and not math.isfinite(loss)]
    return notes + ([f"loss is not finite {_at(not_finite)}"] if not_finite else [])


def missing_ranks(measured: NDArray[Any], known: NDArray[Any]) -> list[str]:
    """At which measured steps ranks are not `known`, as a sentence without a full stop.

    >>> missing_ranks(numpy.array([0, 10, 20, 30]), numpy.array([True, True, False, False]))
    ['ranks are nan from step 20 on, since weights are not finite']
    """
    steps = measured[~known].tolist()
    if not steps:
        return []
    to_the_end = steps == measured[len(measured) - len(steps) :].tolist()
    where = f"from step {steps[0]} on" if to_the_end else _at(steps)
    return [f"ranks are nan {where}, since weights are not finite"]


def _at(steps: list[int]) -> str:
    return f"at step {steps[0]}" if len(steps) == 1 else f"at {len(steps)} steps, first at step {steps[0]}"


def longest(values: Any) -> int:
    """How many numbers the longest of nested lists has.

    >>> longest([[[1.5, 0.5]], [[2.5, 1.5, 0.5], None]])
    3
    """
    if not isinstance(values, list):
        return 0
    return max((longest(value) for value in values if isinstance(value, list)), default=len(values))


def put(target: NDArray[Any], values: list[Any]) -> None:
    """Nested lists into the beginning of an array of nan."""
    for index, value in enumerate(values[: len(target)]):
        if isinstance(value, list):
            put(target[index], value)
        else:
            target[index] = number(value)


def number(value: Any) -> float:
    """A number of a line; infinite beyond `MOST`, and nan where there is none.

    >>> number(-1e300), number(0.5)
    (-inf, 0.5)
    """
    found = numpy.nan if value is None else float(value)
    return math.copysign(math.inf, found) if abs(found) > MOST else found


def mean_over_heads(values: NDArray[Any]) -> NDArray[Any]:
    """The mean over the last axis of what is finite there, nan where nothing is."""
    known = numpy.isfinite(values)
    counts = known.sum(axis=-1)
    sums = numpy.where(known, values, 0).sum(axis=-1)
    return numpy.divide(sums, counts, out=numpy.full(counts.shape, numpy.nan), where=counts > 0)
