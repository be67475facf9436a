"""A claim that can fail: what was measured, what is needed, why there, and the verdict."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Generic, Literal, TypeVar

from rankrise.runs import NotRecorded, Run, Study

Verdict = Literal["holds", "does not hold", "cannot be decided"]
Subject = TypeVar("Subject")
"""What a claim is judged on: a toy run, the study of a data set, or several studies."""


@dataclass(frozen=True)
class Measure:
    """One statistic of a run, and the threshold that it is held against.

    `passes` is None where the statistic is not defined on this run, or where it is told for information only
    (`needed` is then empty).
    """

    name: str
    value: float | None
    needed: str
    passes: bool | None
    why: str


@dataclass(frozen=True)
class Claim:
    """A claim of the paper with its verdict, and the reason for it.

    `runs` are the names of the runs it was judged on, and `data` is their data set: empty for a toy run, and
    for a claim that compares data sets.
    """

    name: str
    statement: str
    verdict: Verdict
    reason: str
    measures: tuple[Measure, ...]
    runs: tuple[str, ...] = ()
    data: str = ""

    @property
    def subject(self) -> str:
        """What it was judged on, in words: a data set, a toy run, or data sets together."""
        return self.data or (self.runs[0] if len(self.runs) == 1 else "together")

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self) | {"measures": [asdict(measure) for measure in self.measures]}


@dataclass(frozen=True)
class Statement(Generic[Subject]):
    """A claim before it is judged: its name, its sentence, and the function that measures it.

    `on` gives, of opened runs, what it is judged on, one by one: each toy run, each study, or all studies
    together. `runs` says which runs of such a subject it looks at. Where it is not `about` a subject, it is
    left out unless it was asked for by name.
    """

    name: str
    text: str
    measure: Callable[[Subject], Sequence[Measure]]
    on: Callable[[Sequence[Run]], Sequence[Subject]]
    runs: Callable[[Subject], Sequence[Run]]
    about: Callable[[Subject], bool] = lambda _: True


def at_most(name: str, value: float | None, threshold: float, why: str) -> Measure:
    """A statistic that must not exceed its threshold.

    >>> at_most("error", 0.3, 0.1, "a tenth").passes
    False
    """
    return Measure(name, value, f"<= {threshold:g}", None if value is None else bool(value <= threshold), why)


def at_least(name: str, value: float | None, threshold: float, why: str) -> Measure:
    """A statistic that must reach its threshold."""
    return Measure(name, value, f">= {threshold:g}", None if value is None else bool(value >= threshold), why)


def told(name: str, value: float | None, why: str) -> Measure:
    """A statistic for information, which decides nothing."""
    return Measure(name, value, "", None, why)


def worst(same: Sequence[Measure]) -> Measure:
    """Of one measure on several seeds the one that fails, else one not known, else the nearest to failing."""
    sign = -1 if same[0].needed.startswith(">=") else 1
    return max(same, key=lambda one: (one.passes is False, one.passes is None, sign * (one.value or 0.0)))


def judge(statement: Statement[Subject], subject: Subject) -> Claim:
    """The verdict: a measure that fails refutes; the claim holds where every deciding one passes."""
    measures: tuple[Measure, ...] = ()
    verdict: Verdict = "cannot be decided"
    try:
        measures = tuple(statement.measure(subject))
    except NotRecorded as missing:
        reason = str(missing)
    else:
        deciding = [measure for measure in measures if measure.needed]
        failed = [measure.name for measure in deciding if measure.passes is False]
        unknown = [measure.name for measure in deciding if measure.passes is None]
        if failed:
            verdict, reason = "does not hold", f"it fails on: {'; '.join(failed)}"
        elif unknown:
            reason = f"the run does not determine: {'; '.join(unknown)}"
        else:
            verdict, reason = "holds", f"it passes on {len(deciding)} measures of {len(deciding)}"
    runs = tuple(run.name for run in statement.runs(subject))
    data = ""
    if isinstance(subject, Study):
        data = subject.label
        if measures and len(runs) < len(subject.members):
            reason += f"; judged on {len(runs)} of {len(subject.members)} runs: {' and '.join(runs)}"
    return Claim(statement.name, statement.text, verdict, reason, measures, runs, data)
