"""A claim: numbers of runs, each held against a threshold, and the verdict by its own and other choices."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, ClassVar, Literal

from rankrise.claims.heads import OWN, Estimate, How, Layers, extreme
from rankrise.runs import NotRecorded, Run

Verdict = Literal["holds", "does not hold", "not decided", "not judged"]

INTERVALS = "the interval that holds 90 % of what other draws of heads, and of several seeds, would give"
"""Explanation of `Measure.interval` for tables."""


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


@dataclass(frozen=True)
class Number:
    """A number that decides a claim, what it needs to be, such as "<= 0.1", and why that."""

    name: str
    needed: str
    why: str

    @property
    def worst(self) -> Callable[..., Any]:
        """`max` for a number that needs to be small, `min` for one that needs to be large."""
        return max if self.needed.startswith("<=") else min

    def measure(self, value: float | Estimate | None, threshold: float | None = None) -> Measure:
        """A value held against this threshold or another one."""
        sign, own = self.needed.split()
        limit = float(own) if threshold is None else threshold
        measure = Measure(self.name, None, f"{sign} {limit:.3g}", why=self.why)
        if value is None:
            return measure
        if not isinstance(value, Estimate):
            exact = self.measure(Estimate(value, value, value), threshold)
            return replace(exact, interval=None)
        within, beyond = value.high <= limit, value.low > limit
        if sign == ">=":
            within, beyond = value.low >= limit, value.high < limit
        passes = True if within else False if beyond else None
        return replace(measure, value=value.value, passes=passes, interval=(value.low, value.high))


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict on one part of a subject.

    `runs` names the runs that were judged, `data` their data set (empty for a toy run), and `left_out` other
    runs on it. `by_choice` has the verdict by each other choice alone, None if the record lacks its numbers.
    """

    name: str
    statement: str
    source: str
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
        words = "No other choice turns it." if any(self.by_choice.values()) else ""
        if self.otherwise:
            words = f"Another choice turns it: {self.otherwise}."
        missing = ", ".join(choice for choice, verdict in self.by_choice.items() if verdict is None)
        return f"{words} Not recorded: {missing}.".strip() if missing else words

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"turned": self.turned}


class Statement:
    """A claim on some runs, before it is judged. The docstring of a subclass is the claim.

    A subclass finds what it is about among opened runs, and measures each of its parts, such as the products.
    """

    name: ClassVar[str]
    source: ClassVar[str] = "the paper"
    effect: ClassVar[str] = ""
    numbers: Sequence[Number]
    aggregate: ClassVar[str] = "mean"
    choices: Mapping[str, How] = {}
    """Other choices, each of which is tried alone."""
    runs: Sequence[Any]
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

    def layers(self, part: str, how: How) -> Sequence[Layers]:
        """The numbers by layer; the last is the effect, which may decide nothing."""
        raise NotImplementedError

    def decide(self, part: str, how: How) -> Sequence[Estimate | float | None]:
        """The value of each number of a part."""
        worst = (how.aggregate or self.aggregate) == "worst"
        return [
            extreme(number.worst, layers.each().values()) if worst else layers.mean()
            for number, layers in zip(self.numbers, self.layers(part, how), strict=False)
        ]

    def judged(self, everything: bool = False) -> list[Claim]:
        """The verdict on each part; runs that the claim is not about get one only with `everything`."""
        text, excuse = " ".join((self.__doc__ or "").split()), "" if everything else self.excuse
        runs, left_out = tuple(run.name for run in self.runs), self.left_out
        blank = Claim(self.name, text, self.source, "not judged", excuse, (), runs, self.data, "", left_out)
        try:
            return [self._judged(replace(blank, part=part)) for part in self.parts()]
        except NotRecorded as missing:
            return [blank if excuse else replace(blank, verdict="not decided", reason=str(missing))]

    def _judged(self, blank: Claim) -> Claim:
        own = self._held(blank.part, OWN)
        effects = self.layers(blank.part, OWN)[-1].each() if self.effect else {}
        measures = [
            Measure(self.effect, one.value, interval=(one.low, one.high), layer=layer)
            for layer, one in effects.items()
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
        numbers = self.numbers_of(part)
        limits = [*how.threshold, *[None] * len(numbers)]
        three = zip(numbers, self.decide(part, how), limits, strict=False)
        return [number.measure(value, limit) for number, value, limit in three]


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
