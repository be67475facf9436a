"""What a claim is: numbers of a run, each held against a threshold, and the verdict that follows."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from rankrise.claims.statistics import Estimate
from rankrise.runs import NotRecorded, Run, Study, TrackedRun

Verdict = Literal["holds", "does not hold", "not decided", "not judged"]
Source = Literal["the paper", "the reproduction", "the project"]

INTERVALS = "the interval that holds 90 % of what other draws of heads, and of several seeds, would give"
"""Explanation of `Measure.interval` for tables."""

Subject = TypeVar("Subject")
"""What a claim is judged on: a toy run, the study of a data set, or several studies."""


@dataclass(frozen=True)
class How:
    """The choices behind a number, on four axes; each field left empty means the claim's own choice."""

    rank: str = ""
    """Which rank of the change."""
    aggregate: str = ""
    """How heads, layers or perturbations become one number: "mean", "median" or "worst"."""
    threshold: tuple[float, ...] = ()
    """One threshold per number of the claim."""
    window: str = ""
    """Which part of training counts."""


OWN = How()
"""The claim's own choices."""


@dataclass(frozen=True)
class Measure:
    """A number of a run, and the threshold that it is held against.

    `passes` is True when the whole interval is on the right side of the threshold, False when all of it is on
    the wrong side, and None otherwise: the threshold lies within the interval, the number is not defined on
    this run, or nothing is `needed`.

    `part` is the part of the claim that it belongs to, such as "KQ"; empty means all. `layer` counts from 1.
    A measure with a `choice` was made by another choice than the claim's own, and does not decide.
    """

    name: str
    value: float | None
    needed: str
    passes: bool | None
    why: str
    interval: tuple[float, float] | None = None
    part: str = ""
    layer: int | None = None
    choice: str = ""

    @property
    def label(self) -> str:
        """Its name, with the other choice by which it was measured."""
        return f"{self.name}, but by {self.choice}" if self.choice else self.name


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict on one part of a subject.

    `runs` names the runs that were judged, and `data` their data set (empty for a toy run). `left_out` says
    how each further run on that data set differs from them.
    """

    name: str
    statement: str
    source: Source
    verdict: Verdict
    reason: str
    measures: tuple[Measure, ...]
    runs: tuple[str, ...] = ()
    data: str = ""
    part: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def subject(self) -> str:
        """The data sets or toy run it was judged on, and the part."""
        return ", ".join(word for word in (self.data or self.runs[0], self.part) if word)

    @property
    def effects(self) -> list[Measure]:
        """The size of the effect in each layer."""
        return [one for one in self.measures if one.layer is not None]

    @property
    def deciding(self) -> list[Measure]:
        """The measures that the verdict rests on."""
        return _deciding(self.measures)

    @property
    def choices(self) -> list[Measure]:
        """The deciding measures, remeasured by other choices."""
        return [one for one in self.measures if one.choice]

    @property
    def beside(self) -> list[Measure]:
        """Measures for information."""
        return [one for one in self.measures if not one.needed and not one.choice and one.layer is None]

    @property
    def by_choice(self) -> dict[str, Verdict | None]:
        """The verdict by each other choice alone; None if the record lacks its numbers."""
        if self.verdict == "not judged":
            return {}
        ours = {one.name: one for one in self.deciding}
        found: dict[str, Verdict | None] = {}
        for choice in dict.fromkeys(one.choice for one in self.choices):
            others = {one.name: one for one in self.choices if one.choice == choice}
            known = all(one.value is not None or ours[name].value is None for name, one in others.items())
            found[choice] = _verdict((ours | others).values()) if known else None
        return found

    @property
    def otherwise(self) -> str:
        """Other verdicts with the choices that give them, in words; empty if no choice turns the verdict."""
        return turned_verdicts(self.verdict, self.by_choice)

    @property
    def turned(self) -> str:
        """A sentence: which other choices turn the verdict, and which are not recorded."""
        by_choice, turned = self.by_choice, self.otherwise
        known = sum(verdict is not None for verdict in by_choice.values())
        missing = listed(choice for choice, verdict in by_choice.items() if verdict is None)
        said = [f"Another choice turns it: {turned}."] if turned else []
        if known and not turned:
            said = [f"None of {known} other choices turns it." if known > 1 else "Another choice agrees."]
        return " ".join([*said, f"Not recorded: {missing}."] if missing else said)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the measures of other choices are grouped by choice, with the verdict of each."""
        by_choice = self.by_choice
        choices = [
            {
                "choice": choice,
                "verdict": by_choice.get(choice),
                "measures": [asdict(one) for one in self.choices if one.choice == choice],
            }
            for choice in dict.fromkeys(one.choice for one in self.choices)
        ]
        measures = [asdict(one) for one in self.measures if not one.choice]
        return asdict(self) | {"turned": self.turned, "choices": choices, "measures": measures}


@dataclass(frozen=True)
class Statement(Generic[Subject]):
    """A claim before it is judged.

    `measure` takes one subject. `on` finds the subjects among opened runs, `runs` the runs that a subject's
    verdict rests on, and `not_about` gives the reason for not judging these runs, or "".
    """

    name: str
    text: str
    source: Source
    measure: Callable[[Subject], Sequence[Measure]]
    on: Callable[[Sequence[Run]], Sequence[Subject]]
    runs: Callable[[Subject], Sequence[Run]]
    not_about: Callable[[Sequence[Run]], str] = lambda _: ""


def at_most(name: str, value: float | Estimate | None, threshold: float, why: str, **where: Any) -> Measure:
    """A number that must not exceed its threshold.

    >>> at_most("error", 0.3, 0.1, "a tenth").passes
    False
    >>> at_most("error", Estimate(0.09, 0.07, 0.12), 0.1, "a tenth").passes is None
    True
    """
    low, high = _bounds(value)
    passes = True if high <= threshold else False if low > threshold else None
    return replace(noted(name, value, why, **where), needed=f"<= {threshold:.3g}", passes=passes)


def at_least(name: str, value: float | Estimate | None, threshold: float, why: str, **where: Any) -> Measure:
    """A number that must reach its threshold."""
    low, high = _bounds(value)
    passes = True if low >= threshold else False if high < threshold else None
    return replace(noted(name, value, why, **where), needed=f">= {threshold:.3g}", passes=passes)


def noted(name: str, value: float | Estimate | None, why: str = "", **where: Any) -> Measure:
    """A number for information; with a `layer`, the effect in that layer."""
    if isinstance(value, Estimate):
        return Measure(name, value.value, "", None, why, (value.low, value.high), **where)
    return Measure(name, value, "", None, why, **where)


def _bounds(value: float | Estimate | None) -> tuple[float, float]:
    """Not a number, which fails every comparison, if the value is not defined."""
    if isinstance(value, Estimate):
        return value.low, value.high
    return (math.nan, math.nan) if value is None else (value, value)


def by_each_choice(deciding: Callable[[How], Sequence[Measure]], choices: Mapping[str, How]) -> list[Measure]:
    """The measures by the claim's own choices, then by each other one; empty where the record lacks those."""
    ours = list(deciding(OWN))
    measures = list(ours)
    for choice, how in choices.items():
        try:
            others = [replace(one, why="") for one in deciding(how)]
        except NotRecorded as missing:
            others = [replace(one, value=None, interval=None, passes=None, why=str(missing)) for one in ours]
        measures += [replace(one, choice=choice) for one in others]
    return measures


def judge(statement: Statement[Subject], subject: Subject, everything: bool = False) -> list[Claim]:
    """The verdicts on a subject, one for each part of the claim.

    Runs that the claim is not about get their effects measured, and a verdict only if `everything` is judged.
    """
    runs = statement.runs(subject)
    excuse = "" if everything else statement.not_about(runs)
    compared = [subject] if isinstance(subject, Study) else subject if isinstance(subject, Sequence) else []
    tracked = [run for run in runs if isinstance(run, TrackedRun)]
    blank = Claim(
        statement.name,
        statement.text,
        statement.source,
        verdict="not judged",
        reason=excuse,
        measures=(),
        runs=tuple(run.name for run in runs),
        data=" and ".join(study.label for study in compared),
        left_out=subject.left_out(tracked) if isinstance(subject, Study) else {},
    )
    try:
        measures = statement.measure(subject)
    except NotRecorded as missing:
        return [blank if excuse else replace(blank, verdict="not decided", reason=str(missing))]
    claims = []
    for part in list(dict.fromkeys(one.part for one in measures if one.part)) or [""]:
        mine = tuple(one for one in measures if one.part in ("", part))
        if excuse:
            unjudged = tuple(replace(one, passes=None) for one in mine)
            claims.append(replace(blank, measures=unjudged, part=part))
        else:
            deciding = _deciding(mine)
            verdict, reason = _verdict(deciding), _reason(deciding)
            claims.append(replace(blank, verdict=verdict, reason=reason, measures=mine, part=part))
    return claims


def _deciding(measures: Iterable[Measure]) -> list[Measure]:
    return [one for one in measures if one.needed and not one.choice and one.layer is None]


def _verdict(deciding: Iterable[Measure]) -> Verdict:
    """A measure that fails refutes the claim; the claim holds if every one passes; otherwise it is open."""
    results = [one.passes for one in deciding]
    if False in results:
        return "does not hold"
    return "holds" if results and None not in results else "not decided"


def _reason(deciding: Sequence[Measure]) -> str:
    failed = [one.name for one in deciding if one.passes is False]
    unclear = [one.name for one in deciding if one.passes is None and one.value is not None]
    unknown = [one.name for one in deciding if one.value is None]
    if failed:
        return f"it fails on: {'; '.join(failed)}."
    if unclear:
        return f"the threshold lies within the interval of: {'; '.join(unclear)}."
    if unknown:
        return f"the run does not determine: {'; '.join(unknown)}."
    which = {1: "its one measure", 2: "both measures"}
    return f"it passes on {which.get(len(deciding), f'all {len(deciding)} measures')}."


def turned_verdicts(verdict: str, by_choice: Mapping[str, str | None]) -> str:
    """Each other verdict with the choices that give it.

    >>> turned_verdicts("holds", {"a linear clock": "not decided", "the entropy rank": "holds"})
    'not decided by a linear clock'
    """
    others: dict[str, list[str]] = {}
    for choice, other in by_choice.items():
        if other is not None and other != verdict:
            others.setdefault(other, []).append(choice)
    return "; ".join(f"{other} by {listed(choices)}" for other, choices in others.items())


def listed(choices: Iterable[str]) -> str:
    """Choices separated by commas; those that differ only in a number are merged.

    >>> listed(["a linear clock", "a threshold of 0.2", "a threshold of 0.3"])
    'a linear clock, a threshold of 0.2 or 0.3'
    """
    numbers: dict[tuple[str, str], list[str]] = {}
    for choice in choices:
        before, number, after = (*re.split(r"(\d+(?:\.\d+)?)", choice, maxsplit=1), "", "")[:3]
        numbers.setdefault((before, after), []).append(number)
    return ", ".join(
        before + (" or ".join([", ".join(several[:-1]), several[-1]]) if several[1:] else several[0]) + after
        for (before, after), several in numbers.items()
    )
