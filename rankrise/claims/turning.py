"""Which other choices turn a verdict, in words."""

import re
from collections.abc import Iterable, Mapping


def turning(verdict: str, by_choice: Mapping[str, str | None]) -> str:
    """The sentence on other choices, each made alone; None is the verdict of one that is not recorded.

    >>> turning("holds", {"a linear clock": "not decided", "the entropy rank": "holds"})
    'Another choice turns it: not decided by a linear clock.'
    >>> turning("holds", {"a threshold of 0.2": "holds", "the entropy rank": None})
    'Another choice agrees. Not recorded: the entropy rank.'
    """
    turned = turned_verdicts(verdict, by_choice)
    known = sum(other is not None for other in by_choice.values())
    missing = listed(choice for choice, other in by_choice.items() if other is None)
    said = [f"Another choice turns it: {turned}."] if turned else []
    if known and not turned:
        said = [f"None of {known} other choices turns it." if known > 1 else "Another choice agrees."]
    return " ".join([*said, f"Not recorded: {missing}."] if missing else said)


def turned_verdicts(verdict: str, by_choice: Mapping[str, str | None]) -> str:
    """Each other verdict, with the choices that give it.

    >>> turned_verdicts("holds", {"a linear clock": "not decided", "the entropy rank": "holds"})
    'not decided by a linear clock'
    """
    others: dict[str, list[str]] = {}
    for choice, other in by_choice.items():
        if other is not None and other != verdict:
            others.setdefault(other, []).append(choice)
    return "; ".join(f"{other} by {listed(choices)}" for other, choices in others.items())


def listed(choices: Iterable[str]) -> str:
    """Choices in a row; those that differ in a number only are said once.

    >>> listed(["a linear clock", "a threshold of 0.2", "a threshold of 0.3"])
    'a linear clock, a threshold of 0.2 or 0.3'
    """
    numbers: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        before, number, after = (*re.split(r"(\d+(?:\.\d+)?)", choice, maxsplit=1), "", "")[:3]
        numbers.setdefault((before, after), []).append(number)
    return ", ".join(f"{before}{_either(several)}{after}" for (before, after), several in numbers.items())


def _either(numbers: list[str]) -> str:
    return " or ".join([", ".join(numbers[:-1]), numbers[-1]] if len(numbers) > 1 else numbers)
