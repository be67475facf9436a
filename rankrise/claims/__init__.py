"""Claims: the paper's statements that runs can decide, each a function of them, each able to fail."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rankrise.claims.claim import Claim, Measure, Statement, Verdict, judge
from rankrise.claims.convergence import convergence
from rankrise.claims.full_weights import full_weights
from rankrise.claims.low_rank import low_rank, rank_grows
from rankrise.claims.perturbations import noise_robustness, strict_minima
from rankrise.claims.products import harder_data, on_cifar, vo_exceeds_kq
from rankrise.claims.scales import falls_with_scale
from rankrise.claims.spectra_decay import spectra_decay
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.runs import Study, ToyRun, open, studies

__all__ = [
    "CLAIMS",
    "COMPARING_CLAIMS",
    "TRACKED_CLAIMS",
    "Claim",
    "Measure",
    "Statement",
    "Verdict",
    "check_claims",
    "judge",
    "write_claims",
]

FORMAT = "rankrise-claims/2"

CLAIMS = (
    Statement(
        "convergence",
        "As alpha falls, the flow's stage times and plateau points converge to Algorithm 1's (Theorem 4.5), "
        "and the support grows by at most one coordinate a stage.",
        convergence,
    ),
    Statement(
        "strict minima",
        "Plateaus are strict local minima: after noise at random times, training returns to where it was.",
        strict_minima,
    ),
    Statement(
        "noise robustness",
        "Stages are robust: after noise when a coordinate becomes active, training follows the same path.",
        noise_robustness,
    ),
    Statement(
        "full weights",
        "With full weight matrices, singular values are learned one after another, "
        "and the loss has plateaus and drops.",
        full_weights,
    ),
)
"""The claims of a toy run. To add one, write a function of a run that gives measures, and state it here."""

TRACKED_CLAIMS = (
    Statement(
        "low rank",
        "The learned change of an attention product is of low rank: in every layer its stable rank stays far "
        "below the head size.",
        low_rank,
    ),
    Statement("rank grows", "The rank of the change grows during training.", rank_grows),
    Statement(
        "initialisation scale",
        "The smaller the initialisation, the lower the rank of the change after training.",
        falls_with_scale,
    ),
    Statement(
        "spectra",
        "The normalised spectrum of the change decays much faster than that of the initial product, in every "
        "layer.",
        spectra_decay,
    ),
    Statement(
        "products",
        "What is learned in VO, values times outputs, has a higher stable rank than what is learned in KQ, "
        "keys times queries (the reproduction's claim).",
        vo_exceeds_kq,
    ),
)
"""The claims of tracked runs, judged on each data set by itself: a function of its study."""

COMPARING_CLAIMS = (
    Statement(
        "data sets",
        "The change has a higher stable rank on CIFAR-100 than on CIFAR-10 (the reproduction's claim).",
        harder_data,
    ),
)
"""Those that compare data sets: a function of all studies together."""


def check_claims(runs: str | Path | Sequence[str | Path], names: Sequence[str] | None = None) -> list[Claim]:
    """Judge claims, all or those of `names`: on each toy run, and on each data set of tracked runs by itself.

    A claim that compares data sets is judged on all of them together; where none of those it speaks of is
    there, only if it was named.
    """
    opened = open(runs)
    toys = [run for run in opened if isinstance(run, ToyRun)]
    grouped = studies(opened)
    table: list[Statement[Any]] = [*CLAIMS] if toys else []
    table += [*TRACKED_CLAIMS, *COMPARING_CLAIMS] if grouped else []
    known = [statement.name for statement in table]
    for name in names or ():
        if name not in known:
            raise RankriseError(f"claim {name!r} is not known: pass some of {', '.join(map(repr, known))}")
    chosen = known if names is None else names
    judged: list[Claim] = []
    for one in CLAIMS:
        if one.name in chosen:
            judged += [judge(one, run, [run.name]) for run in toys]
    for of_one in TRACKED_CLAIMS:
        if of_one.name in chosen:
            judged += [_judged(of_one, study) for study in grouped]
    compared = on_cifar(grouped)
    if names is not None or compared:
        together = [member.name for study in compared or grouped for member in study.main]
        judged += [judge(of_all, grouped, together) for of_all in COMPARING_CLAIMS if of_all.name in chosen]
    return judged


def _judged(statement: Statement[Study], study: Study) -> Claim:
    """The verdict on a data set, with the runs it was judged on where they are not all of them."""
    compared = [one for same in study.scales.values() for one in same]
    members = compared if statement.measure is falls_with_scale else study.main
    names = [one.name for one in members]
    claim = judge(statement, study, names, study.label)
    if claim.measures and len(members) < len(study.members):
        of = f"{len(members)} of {len(study.members)} runs: {' and '.join(names)}"
        return replace(claim, reason=f"{claim.reason}; judged on {of}")
    return claim


def write_claims(path: str | Path, claims: Sequence[Claim]) -> None:
    """Keep the verdicts in a file, a new one or one of verdicts."""
    if Path(path).exists() and not _holds_verdicts(Path(path)):
        raise RankriseError(f"{path} is there and holds no verdicts: pass the name of a new file")
    write_json(path, {"format": FORMAT, "claims": [claim.to_dict() for claim in claims]})


def _holds_verdicts(path: Path) -> bool:
    try:
        found = str(json.loads(path.read_text(encoding="utf-8"))["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return found.partition("/")[0] == FORMAT.partition("/")[0]
