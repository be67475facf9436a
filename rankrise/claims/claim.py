"""A claim: numbers of runs, each held against a threshold, and the verdict by its own and other choices."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import zip_longest
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
    aggregate: str = ""
    """How heads, layers or perturbations become one number."""
    threshold: tuple[float, ...] = ()
    """For the first numbers of a claim; the others keep their own."""
    window: str = ""
    """Which part of training counts."""


OWN = How()


def other(choice: str, **axis: Any) -> dict[str, How]:
    """Another choice, on one axis."""
    return {choice: How(**axis)}


@dataclass(frozen=True)
class Measure:
    """A number of a run, and the threshold that it is held against.

    `passes` is True or False when the whole interval is on the right or the wrong side of the threshold, and
    None otherwise. A measure with a `layer`, from 1, is the effect in that layer, and one with a `choice` was
    made by another choice than the claim's own: neither decides.
    """

    name: str
    value: float | None
    needed: str = ""
    passes: bool | None = None
    why: str = ""
    interval: tuple[float, float] | None = None
    layer: int | None = None
    choice: str = ""

    @property
    def label(self) -> str:
        """Its name, with the other choice by which it was measured."""
        return f"{self.name}, but by {self.choice}" if self.choice else self.name


@dataclass(frozen=True)
class Number:
    """A number that decides a claim, what it needs to be, such as "<= 0.1", and why that.

    >>> number = Number("error", "<= 0.1", "a tenth")
    >>> number.measure(0.3).passes, number.measure(Estimate(0.09, 0.07, 0.12)).passes
    (False, None)
    """

    name: str
    needed: str
    why: str

    def measure(self, value: float | Estimate | None, threshold: float | None = None) -> Measure:
        """A value held against this threshold or another one."""
        sign, own = self.needed.split()
        limit = float(own) if threshold is None else threshold
        measure = Measure(self.name, None, f"{sign} {limit:.3g}", why=self.why)
        if value is None:
            return measure
        one = value if isinstance(value, Estimate) else Estimate(value, value, value)
        within = one.high <= limit if sign == "<=" else one.low >= limit
        beyond = one.low > limit if sign == "<=" else one.high < limit
        interval = (one.low, one.high) if one is value else None
        return replace(
            measure, value=one.value, passes=within or (False if beyond else None), interval=interval
        )


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict on one part of a subject.

    `runs` names the runs that were judged, `data` their data set (empty for a toy run), and `left_out` other
    runs on it. `by_choice` has the verdict by each other choice alone, None if the record lacks its numbers.
    """

    name: str
    statement: str
    source: Source
    verdict: Verdict
    reason: str
    measures: tuple[Measure, ...]
    runs: tuple[str, ...]
    data: str
    part: str = ""
    left_out: tuple[str, ...] = ()
    by_choice: Mapping[str, Verdict | None] = field(default_factory=dict)

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
        return [one for one in self.measures if one.layer is None and not one.choice]

    @property
    def choices(self) -> list[Measure]:
        """The deciding measures, remeasured by other choices."""
        return [one for one in self.measures if one.choice]

    @property
    def otherwise(self) -> str:
        """Other verdicts with the choices that give them, in words; empty if no choice turns the verdict."""
        others: dict[str, list[str]] = {}
        for choice, verdict in self.by_choice.items():
            if verdict not in (None, self.verdict):
                others.setdefault(str(verdict), []).append(choice)
        return "; ".join(f"{verdict} by {', '.join(choices)}" for verdict, choices in others.items())

    @property
    def turned(self) -> str:
        """A sentence: which other choices turn the verdict, and which are not recorded."""
        missing = ", ".join(choice for choice, verdict in self.by_choice.items() if verdict is None)
        words = [f"Another choice turns it: {self.otherwise}."] if self.otherwise else []
        if any(self.by_choice.values()) and not words:
            words = ["No other choice turns it."]
        return " ".join([*words, f"Not recorded: {missing}."] if missing else words)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"turned": self.turned}


class Statement:
    """A claim on some runs, before it is judged. The docstring of a subclass is the claim.

    A subclass finds what it is about among opened runs, and measures each of its parts, such as the products.
    """

    name: ClassVar[str]
    source: ClassVar[Source] = "the paper"
    effect: ClassVar[str] = ""
    numbers: Sequence[Number]
    choices: Mapping[str, How] = {}
    """Other choices, each of which is tried alone."""
    runs: Sequence[Run]
    data = ""
    left_out: tuple[str, ...] = ()
    excuse = ""
    """Why the claim is not about these runs."""

    @classmethod
    def on(cls, opened: Sequence[Run]) -> "list[Statement]":
        """The claim on each subject among opened runs."""
        raise NotImplementedError

    def parts(self) -> Sequence[str]:
        """The parts that have a verdict each."""
        return [""]

    def numbers_of(self, part: str) -> Sequence[Number]:
        """The numbers that decide a part."""
        return self.numbers

    def effects(self, part: str) -> Mapping[int, Estimate]:
        """The size of the effect in each layer."""
        return {}

    def decide(self, part: str, how: How) -> Sequence[Estimate | float | None]:
        """The value of each number of a part."""
        raise NotImplementedError

    def judged(self, everything: bool = False) -> list[Claim]:
        """The verdict on each part; runs that the claim is not about get one only with `everything`."""
        statement, excuse = " ".join((self.__doc__ or "").split()), "" if everything else self.excuse
        runs = tuple(run.name for run in self.runs)
        blank = Claim(self.name, statement, self.source, "not judged", excuse, (), runs, self.data)
        blank = replace(blank, left_out=self.left_out)
        try:
            return [self._judged(replace(blank, part=part)) for part in self.parts()]
        except NotRecorded as missing:
            return [blank if excuse else replace(blank, verdict="not decided", reason=str(missing))]

    def _judged(self, blank: Claim) -> Claim:
        own = self._held(blank.part, OWN)
        measures = [
            Measure(self.effect, one.value, interval=(one.low, one.high), layer=layer)
            for layer, one in self.effects(blank.part).items()
        ]
        measures += own
        by_choice: dict[str, Verdict | None] = {}
        for choice, how in self.choices.items():
            try:
                others = self._held(blank.part, how)
            except NotRecorded:
                by_choice[choice] = None
                continue
            by_choice[choice] = verdict_of(others)[0]
            measures += [replace(one, choice=choice, why="") for one in others]
        if blank.reason:  # not judged
            return replace(blank, measures=tuple(replace(one, passes=None) for one in measures))
        verdict, reason = verdict_of(own)
        return replace(blank, verdict=verdict, reason=reason, measures=tuple(measures), by_choice=by_choice)

    def _held(self, part: str, how: How) -> list[Measure]:
        held = zip_longest(self.decide(part, how), how.threshold)
        numbers = self.numbers_of(part)
        return [number.measure(*one) for number, one in zip(numbers, held, strict=False)]


def verdict_of(deciding: Collection[Measure]) -> tuple[Verdict, str]:
    """The verdict and its reason.

    A measure that fails refutes the claim; the claim holds if every one passes; otherwise it is open.
    """
    failed = [one.name for one in deciding if one.passes is False]
    unknown = [one.name for one in deciding if one.value is None]
    unclear = [one.name for one in deciding if one.passes is None and one.value is not None]
    if failed:
        return "does not hold", f"it fails on: {'; '.join(failed)}."
    if unclear:
        return "not decided", f"the threshold lies within the interval of: {'; '.join(unclear)}."
    if unknown:
        return "not decided", f"the run does not determine: {'; '.join(unknown)}."
    return "holds", "every number passes."
