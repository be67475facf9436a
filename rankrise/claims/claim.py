"""A claim that can fail: what was measured, what is needed, why there, and the verdict."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar

from rankrise.claims.statistics import Estimate
from rankrise.claims.turning import turned_verdicts, turning
from rankrise.runs import NotRecorded, Run, Study, TrackedRun

Verdict = Literal["holds", "does not hold", "not decided", "not judged"]
Source = Literal["the paper", "the reproduction", "the project"]
"""Who made a claim: the paper, those who reproduced it, or this project."""

INTERVALS = "the interval that holds 90 % of what other draws of heads, and of several seeds, would give"
"""What `Measure.interval` is, in words."""

Subject = TypeVar("Subject")
"""What a claim is judged on: a toy run, the study of a data set, or several studies."""


@dataclass(frozen=True)
class Measure:
    """A number of a run, and the threshold that it is held against, where it has one.

    `interval` is there for a statistic over heads, and for a rank of which only some were tried, where it is
    the least and the most that it can be. `passes` is True where the whole interval is on the right
    side of the threshold, False where all of it is on the wrong side, and None where the threshold lies
    within it, where the number is not defined on this run, or where nothing is `needed`.

    `part` says which of the claim's parts it belongs to, such as "KQ"; all of them where it is empty. `layer`
    is the number of a layer, from 1. `choice` says by which other choice the number was measured: it decides
    nothing, and stands beside the measure of the same name and part that does.
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
        """Its name, and by which other choice it was measured."""
        return f"{self.name}, but by {self.choice}" if self.choice else self.name


@dataclass(frozen=True)
class Claim:
    """A claim with its verdict on a part of a subject, and the reason for it.

    `runs` are the names of the runs it was judged on, `data` is their data set (empty for a toy run), and
    `part` is what of them was judged, such as "KQ"; empty where the claim has one part. `left_out` says of
    each further run on that data set how it differs from them.
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
        """What it was judged on, in words: data sets or a toy run, and the part of it."""
        return ", ".join(word for word in (self.data or self.runs[0], self.part) if word)

    @property
    def effects(self) -> list[Measure]:
        """How large it is in each layer."""
        return [measure for measure in self.measures if measure.layer is not None]

    @property
    def deciding(self) -> list[Measure]:
        """The measures that the verdict rests on."""
        return _deciding(self.measures)

    @property
    def choices(self) -> list[Measure]:
        """The same measures by other choices."""
        return [measure for measure in self.measures if measure.choice]

    @property
    def by_choice(self) -> dict[str, Verdict | None]:
        """The verdict by each other choice alone; None by one that the record does not tell."""
        return {} if self.verdict == "not judged" else _by_choice(self.measures)

    @property
    def otherwise(self) -> str:
        """The other verdicts, with the choices that give them, in words; empty where no choice turns it."""
        return turned_verdicts(self.verdict, self.by_choice)

    @property
    def turned(self) -> str:
        """The sentence on other choices: which of them turn the verdict, and which are not recorded."""
        return turning(self.verdict, self.by_choice)

    @property
    def beside(self) -> list[Measure]:
        """What is shown beside them, and decides nothing."""
        return [one for one in self.measures if not one.needed and not one.choice and one.layer is None]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: what another choice gives stands under that choice, beside its verdict."""
        choices = [
            {
                "choice": choice,
                "verdict": self.by_choice.get(choice),
                "measures": [asdict(one) for one in self.choices if one.choice == choice],
            }
            for choice in dict.fromkeys(one.choice for one in self.choices)
        ]
        measures = [asdict(one) for one in self.measures if not one.choice]
        return asdict(self) | {"turned": self.turned, "choices": choices, "measures": measures}


@dataclass(frozen=True)
class Statement(Generic[Subject]):
    """A claim before it is judged: its name, its sentence, who made it, and the function that measures it.

    `on` gives, of opened runs, what it is judged on, one by one: each toy run, each study, or some studies
    together. `runs` says which runs of such a subject it looks at. `not_about` says why it is not about them,
    or nothing where it is.
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
    passes = None if low is None else True if high <= threshold else False if low > threshold else None
    return _measure(name, value, f"<= {threshold:.3g}", passes, why, where)


def at_least(name: str, value: float | Estimate | None, threshold: float, why: str, **where: Any) -> Measure:
    """A number that must reach its threshold."""
    low, high = _bounds(value)
    passes = None if low is None else True if low >= threshold else False if high < threshold else None
    return _measure(name, value, f">= {threshold:.3g}", passes, why, where)


def noted(name: str, value: float | Estimate | None, why: str, **where: Any) -> Measure:
    """A number for information, which decides nothing; in a `layer`, the effect there."""
    return _measure(name, value, "", None, why, where)


def _bounds(value: float | Estimate | None) -> tuple[Any, Any]:
    return (value.low, value.high) if isinstance(value, Estimate) else (value, value)


def _measure(
    name: str,
    value: float | Estimate | None,
    needed: str,
    passes: bool | None,
    why: str,
    where: dict[str, Any],
) -> Measure:
    if isinstance(value, Estimate):
        return Measure(name, value.value, needed, passes, why, (value.low, value.high), **where)
    return Measure(name, value, needed, passes, why, **where)


def by_each_choice(
    deciding: Callable[..., Sequence[Measure]], choices: Mapping[str, Mapping[str, Any]]
) -> list[Measure]:
    """The measures that decide, as `deciding()` gives them; then the same by each other choice, with its
    arguments: without numbers where the record does not have them."""
    ours = list(deciding())
    measures = list(ours)
    for choice, arguments in choices.items():
        try:
            others = [replace(one, why="") for one in deciding(**arguments)]  # the reasons are for ours
        except NotRecorded as missing:
            others = [replace(one, value=None, interval=None, passes=None, why=str(missing)) for one in ours]
        measures += [replace(one, choice=choice) for one in others]
    return measures


TOLERANCES: dict[str, dict[str, float]] = {
    "half the tolerance": {"tolerance": 0.5},
    "twice the tolerance": {"tolerance": 2.0},
}
"""Other thresholds, where nothing says how far from the ideal they are to be."""


def worst_seed(same: Sequence[Measure]) -> Measure:
    """Of one measure on several seeds the one that fails, else one not known, else the nearest to failing."""
    sign = -1 if same[0].needed.startswith(">=") else 1
    return max(same, key=lambda one: (one.passes is False, one.passes is None, sign * (one.value or 0.0)))


def judge(statement: Statement[Subject], subject: Subject, everything: bool = False) -> list[Claim]:
    """The verdicts, one for each part of the claim.

    Runs that the claim is not about have their effects measured, and a verdict where `everything` is judged.
    """
    runs = statement.runs(subject)
    names = tuple(run.name for run in runs)
    excuse = "" if everything else statement.not_about(runs)
    tracked = [run for run in runs if isinstance(run, TrackedRun)]
    left_out = subject.left_out(tracked) if isinstance(subject, Study) else {}

    def claim(verdict: Verdict, reason: str, measures: tuple[Measure, ...] = (), part: str = "") -> Claim:
        said = (statement.name, statement.text, statement.source)
        return Claim(*said, verdict, reason, measures, names, _data(subject), part, left_out)

    try:
        measures = statement.measure(subject)
    except NotRecorded as missing:
        return [claim("not judged", excuse) if excuse else claim("not decided", str(missing))]
    claims = []
    for part in list(dict.fromkeys(measure.part for measure in measures if measure.part)) or [""]:
        mine = tuple(measure for measure in measures if measure.part in ("", part))
        if excuse:
            shown = tuple(replace(measure, passes=None) for measure in mine)
            claims.append(claim("not judged", excuse, shown, part))
        else:
            verdict, reason = _verdict(mine)
            claims.append(claim(verdict, f"{reason}.", mine, part))
    return claims


def _data(subject: object) -> str:
    studies = [subject] if isinstance(subject, Study) else subject if isinstance(subject, Sequence) else []
    return " and ".join(study.label for study in studies)


def _verdict(measures: Sequence[Measure]) -> tuple[Verdict, str]:
    """A measure that fails refutes; the claim holds where every deciding one passes; else it is open."""
    deciding = {one.name: one for one in _deciding(measures)}
    verdict = _of(list(deciding.values()))
    failed = [name for name, one in deciding.items() if one.passes is False]
    unclear = [name for name, one in deciding.items() if one.passes is None and one.value is not None]
    unknown = [name for name, one in deciding.items() if one.value is None]
    if failed:
        reason = f"it fails on: {'; '.join(failed)}"
    elif unclear:
        reason = f"the threshold lies within the interval of: {'; '.join(unclear)}"
    elif unknown:
        reason = f"the run does not determine: {'; '.join(unknown)}"
    else:
        which = {1: "its one measure", 2: "both measures"}
        reason = f"it passes on {which.get(len(deciding), f'all {len(deciding)} measures')}"
    return verdict, reason


def _deciding(measures: Sequence[Measure]) -> list[Measure]:
    return [one for one in measures if one.needed and not one.choice and one.layer is None]


def _by_choice(measures: Sequence[Measure]) -> dict[str, Verdict | None]:
    """The verdict by each other choice, where its numbers are known."""
    deciding = {one.name: one for one in _deciding(measures)}
    found: dict[str, Verdict | None] = {}
    for choice in dict.fromkeys(measure.choice for measure in measures if measure.choice):
        chosen = {one.name: one for one in measures if one.choice == choice}
        known = all(one.value is not None or deciding[name].value is None for name, one in chosen.items())
        found[choice] = _of(list((deciding | chosen).values())) if known else None
    return found


def _of(deciding: Sequence[Measure]) -> Verdict:
    results = [measure.passes for measure in deciding]
    return (
        "does not hold" if False in results else "holds" if results and None not in results else "not decided"
    )
