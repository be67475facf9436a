"""Claims: the paper's statements that a run can decide, each a function of the run, each able to fail."""

from collections.abc import Sequence
from pathlib import Path

from rankrise.claims.claim import Claim, Measure, Statement, Verdict, judge
from rankrise.claims.convergence import convergence
from rankrise.claims.full_weights import full_weights
from rankrise.claims.perturbations import noise_robustness, strict_minima
from rankrise.errors import RankriseError
from rankrise.files import write_json
from rankrise.toy import open_run

__all__ = ["CLAIMS", "Claim", "Measure", "Statement", "Verdict", "check_claims", "judge", "write_claims"]

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
"""The table of claims. To add one, write a function of a run that gives measures, and state it here."""


def check_claims(run: str | Path, names: Sequence[str] | None = None) -> list[Claim]:
    """Judge the claims on a run, all of them or those of `names`."""
    known = {statement.name: statement for statement in CLAIMS}
    for name in names or ():
        if name not in known:
            raise RankriseError(f"claim {name!r} is not known: pass some of {', '.join(map(repr, known))}")
    opened = open_run(run)
    return [judge(known[name], opened) for name in (known if names is None else names)]


def write_claims(run: str | Path, claims: Sequence[Claim]) -> Path:
    """Keep the verdicts in the run's claims.json."""
    path = Path(run) / "claims.json"
    write_json(path, {"format": "rankrise-claims/1", "claims": [claim.to_dict() for claim in claims]})
    return path
