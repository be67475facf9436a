"""Claims: statements of the paper and of its reproduction that runs can decide, each able to fail."""

from collections.abc import Sequence
from pathlib import Path

from rankrise.claims.claim import INTERVALS, Claim, Measure, Statement, Verdict, judge
from rankrise.claims.statements import STATEMENTS
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json, write_json
from rankrise.runs import Run, ToyRun

__all__ = [
    "INTERVALS",
    "STATEMENTS",
    "Claim",
    "Measure",
    "Statement",
    "Verdict",
    "check_claims",
    "has_claims",
    "judge",
    "write_claims",
]

FORMAT = "rankrise-claims/4"


def has_claims(run: Run) -> bool:
    """Whether any claim may be about a run: of tracked ones, about those with heads."""
    return isinstance(run, ToyRun) or bool(run.layers)


def check_claims(
    opened: Sequence[Run], names: Sequence[str] | None = None, everything: bool = False
) -> list[Claim]:
    """Judge claims on opened runs, all or those of `names`, each on every subject and part that it has.

    Runs that a claim is not about have their effects measured, and a verdict where `everything` is judged.
    """
    for run in opened:
        if not has_claims(run):
            raise RankriseError(
                f"{run.folder} tracked matrices and no attention heads, which every claim on tracked runs is "
                f"about: see it with 'rankrise report {run.folder}'."
            )
    table = [(statement, statement.on(opened)) for statement in STATEMENTS]
    known = [statement.name for statement, subjects in table if subjects]
    for name in names or ():
        if name not in known:
            raise RankriseError(f"claim {name!r} is not known: pass some of {', '.join(map(repr, known))}.")
    return [
        claim
        for statement, subjects in table
        if names is None or statement.name in names
        for subject in subjects
        for claim in judge(statement, subject, everything)
    ]


def write_claims(path: str | Path, claims: Sequence[Claim]) -> None:
    """Keep the verdicts in a file, a new one or one of verdicts."""
    if Path(path).exists() and not _holds_verdicts(Path(path)):
        raise RankriseError(f"{path} exists and holds no verdicts: pass the name of a new file.")
    write_json(path, {"format": FORMAT, "claims": [claim.to_dict() for claim in claims]})


def _holds_verdicts(path: Path) -> bool:
    try:
        found = str(read_json(path).get("format"))
    except RankriseError:
        return False
    return found.partition("/")[0] == FORMAT.partition("/")[0]
