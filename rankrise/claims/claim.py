"""A claim: numbers of runs, each held against a threshold, and the verdict by its own and other choices."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from rankrise.claims.statistics import Estimate
from rankrise.runs import NotRecorded, Run

Verdict = Literal["holds", "does not hold", "not decided", "not judged"]
Source = Literal["the paper", "the reproduction", "the project"]

INTERVALS = "the interval that holds 90 % of what other draws of heads, and of several seeds, would give"
"""Explanation of `Measure.interval` for tables."""


@dataclass(frozen=True)
class How:
    """The choices behind a number, on four axes; each field left empty means the claim's own choice."""

    rank: str = ""
    """Which rank of the change."""
    aggregate: str = ""
    """How heads, layers or perturbations become one number."""
    threshold: tuple[float, ...] = ()
    """One for each number of the claim."""
    window: str = ""
    """Which part of training counts."""


OWN = How()
"""The claim's own choices."""


def thresholds(*several: float, numbers: int = 1) -> dict[str, How]:
    """Other thresholds of all numbers of a claim, each as another choice."""
    return {f"a threshold of {one:g}": How(threshold=(one,) * numbers) for one in several}


def values_above(*several: float) -> dict[str, How]:
    """Ranks that count singular values above a share of the largest, each as another choice."""
    return {f"values above {one:g} of the largest": How(rank=str(one)) for one in several}


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

    @property
    def decides(self) -> bool:
        """Whether the verdict rests on it."""
        return bool(self.needed) and not self.choice and self.layer is None


def noted(name: str, value: float | Estimate | None, why: str = "", layer: int | None = None) -> Measure:
    """A number for information; with a `layer`, the effect in that layer."""
    if isinstance(value, Estimate):
        return Measure(name, value.value, "", None, why, (value.low, value.high), layer=layer)
    return Measure(name, value, "", None, why, layer=layer)


def by_layer(
    name: str, each: Mapping[int, Estimate], why: str = "", of: Callable[[float], float] = float
) -> list[Measure]:
    """An increasing function of the effect in each layer."""
    return [noted(name, one.mapped(of), why, layer) for layer, one in each.items()]


@dataclass(frozen=True)
class Number:
    """A number that decides a claim, such as one that is `needed` to be "<= 0.1"."""

    name: str
    needed: str
    why: str
    part: str = ""

    @property
    def sign(self) -> str:
        return self.needed[:2]

    @property
    def threshold(self) -> float:
        return float(self.needed[3:])

    def measure(self, value: float | Estimate | None, threshold: float | None = None) -> Measure:
        """A value held against this threshold or another one.

        >>> number = Number("error", "<= 0.1", "a tenth")
        >>> number.measure(0.3).passes, number.measure(Estimate(0.09, 0.07, 0.12)).passes
        (False, None)
        """
        measure, passes = noted(self.name, value, self.why), None
        limit = self.threshold if threshold is None else threshold
        if measure.value is not None:
            low, high = measure.interval or (measure.value, measure.value)
            within, beyond = (
                (high <= limit, low > limit) if self.sign == "<=" else (low >= limit, high < limit)
            )
            passes = True if within else False if beyond else None
        return replace(measure, needed=f"{self.sign} {limit:.3g}", passes=passes)


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
        return [one for one in self.measures if one.decides]

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
            found[choice] = verdict_of((ours | others).values())[0] if known else None
        return found

    @property
    def otherwise(self) -> str:
        """Other verdicts with the choices that give them, in words; empty if no choice turns the verdict."""
        others: dict[str, list[str]] = {}
        for choice, verdict in self.by_choice.items():
            if verdict not in (None, self.verdict):
                others.setdefault(str(verdict), []).append(choice)
        return "; ".join(f"{verdict} by {listed(choices)}" for verdict, choices in others.items())

    @property
    def turned(self) -> str:
        """A sentence: which other choices turn the verdict, and which are not recorded."""
        by_choice, turned = self.by_choice, self.otherwise
        known = sum(verdict is not None for verdict in by_choice.values())
        missing = listed(choice for choice, verdict in by_choice.items() if verdict is None)
        words = [f"Another choice turns it: {turned}."] if turned else []
        if known and not turned:
            words = [f"None of {known} other choices turns it." if known > 1 else "Another choice agrees."]
        return " ".join([*words, f"Not recorded: {missing}."] if missing else words)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: the measures of other choices are grouped by choice, with the verdict of each."""
        verdicts = dict.fromkeys(one.choice for one in self.choices) | self.by_choice
        choices = []
        for choice, verdict in verdicts.items():
            measures = [asdict(one) for one in self.choices if one.choice == choice]
            choices.append({"choice": choice, "verdict": verdict, "measures": measures})
        measures = [asdict(one) for one in self.measures if not one.choice]
        return asdict(self) | {"turned": self.turned, "choices": choices, "measures": measures}


class Statement:
    """A claim on some runs, before it is judged. The docstring of a subclass is the claim.

    A subclass finds what it is about among opened runs, and measures each of its parts, such as the products.
    """

    name: ClassVar[str]
    source: ClassVar[Source] = "the paper"
    numbers: Sequence[Number]
    """Each claim is a row of these."""
    choices: Mapping[str, How] = {}
    """Other choices, each of which is tried alone."""
    runs: Sequence[Run]
    """The runs that the verdict rests on."""
    data = ""
    """The data sets that are judged."""
    left_out: Mapping[str, str] = {}
    """How each further run on the data set differs from those that are judged."""
    excuse = ""
    """Why the claim is not about these runs."""

    @classmethod
    def on(cls, opened: Sequence[Run]) -> "list[Statement]":
        """The claim on each subject among opened runs."""
        raise NotImplementedError

    def parts(self) -> Sequence[str]:
        """The parts that have a verdict each."""
        return [""]

    def effects(self, part: str) -> Sequence[Measure]:
        """The size of the effect in each layer."""
        return []

    def decide(self, part: str, how: How) -> Sequence[Estimate | float | None]:
        """The value of each number of a part, by the claim's own choices or one other."""
        raise NotImplementedError

    def beside(self, part: str) -> Sequence[Measure]:
        """Further numbers of a part."""
        return []

    def thresholds(self, how: How) -> Sequence[float]:
        """The threshold of each number."""
        return how.threshold or [one.threshold for one in self.numbers]

    def held(self, part: str, how: How) -> list[Measure]:
        """The numbers that decide, each held against its threshold."""
        numbers = zip(self.numbers, self.thresholds(how), strict=True)
        mine = [(number, threshold) for number, threshold in numbers if number.part in ("", part)]
        values = self.decide(part, how)
        return [number.measure(value, limit) for (number, limit), value in zip(mine, values, strict=False)]

    def measures(self) -> list[Measure]:
        """All measures, in the order in which they are shown."""
        found: list[Measure] = []
        for part in self.parts():
            own = self.held(part, OWN)
            measured = [*self.effects(part), *own]
            for choice, how in self.choices.items():
                try:
                    others = [replace(one, why="") for one in self.held(part, how)]
                except NotRecorded as missing:
                    unknown: dict[str, Any] = {"value": None, "interval": None, "passes": None}
                    others = [replace(one, **unknown, why=str(missing)) for one in own]
                measured += [replace(one, choice=choice) for one in others]
            found += [replace(one, part=part) for one in (*measured, *self.beside(part))]
        return found

    def judged(self, everything: bool = False) -> list[Claim]:
        """The verdict on each part.

        Runs that the claim is not about get their effects measured, and a verdict only with `everything`.
        """
        excuse = "" if everything else self.excuse
        blank = Claim(
            self.name,
            " ".join((self.__doc__ or "").split()),
            self.source,
            verdict="not judged",
            reason=excuse,
            measures=(),
            runs=tuple(run.name for run in self.runs),
            data=self.data,
            left_out=self.left_out,
        )
        try:
            measures = self.measures()
        except NotRecorded as missing:
            return [blank if excuse else replace(blank, verdict="not decided", reason=str(missing))]
        claims = []
        for part in list(dict.fromkeys(one.part for one in measures if one.part)) or [""]:
            mine = tuple(one for one in measures if one.part in ("", part))
            if excuse:
                mine = tuple(replace(one, passes=None) for one in mine)
                claims.append(replace(blank, measures=mine, part=part))
            else:
                verdict, reason = verdict_of(one for one in mine if one.decides)
                claims.append(replace(blank, verdict=verdict, reason=reason, measures=mine, part=part))
        return claims


def verdict_of(deciding: Iterable[Measure]) -> tuple[Verdict, str]:
    """The verdict and its reason.

    A measure that fails refutes the claim; the claim holds if every one passes; otherwise it is open.
    """
    deciding = list(deciding)
    failed = [one.name for one in deciding if one.passes is False]
    unclear = [one.name for one in deciding if one.passes is None and one.value is not None]
    unknown = [one.name for one in deciding if one.value is None]
    if failed:
        return "does not hold", f"it fails on: {'; '.join(failed)}."
    if unclear:
        return "not decided", f"the threshold lies within the interval of: {'; '.join(unclear)}."
    if unknown or not deciding:
        return "not decided", f"the run does not determine: {'; '.join(unknown)}."
    which = {1: "its one measure", 2: "both measures"}
    return "holds", f"it passes on {which.get(len(deciding), f'all {len(deciding)} measures')}."


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
