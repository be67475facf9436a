"""Claims of the paper, of its reproduction and of this project, judged on runs; each can fail.

To add a claim, write a subclass of `Statement` in the module of its subject, and list it in `STATEMENTS`.
"""

from collections.abc import Sequence
from pathlib import Path

from rankrise.claims import toy, tracked
from rankrise.claims.claim import Claim, Statement
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import write_json
from rankrise.runs import Run

FORMAT = "rankrise-claims/5"
STATEMENTS: tuple[type[Statement], ...] = (
    *(toy.Convergence, toy.Support, toy.Nondegeneracy, toy.StrictMinima, toy.NoiseRobustness),
    *(toy.FullWeights, tracked.LowRank, tracked.FunctionalRank, tracked.RankGrows),
    *(tracked.InitialisationScale, tracked.SpectraDecay, tracked.ImageNet, tracked.Products),
    tracked.DataSets,
)


def check_claims(
    opened: Sequence[Run], names: Sequence[str] | None = None, everything: bool = False
) -> list[Claim]:
    """Judge all claims on opened runs, or those of `names`, each on every subject that it is about.

    Runs that a claim is not about get their effects measured, and a verdict only if `everything` is judged.
    """
    found = [claim for statement in STATEMENTS for claim in statement.on(opened)]
    known = list(dict.fromkeys(claim.name for claim in found))
    for name in names or ():
        if name not in known:
            raise RankriseError(f"claim {name!r} is not known: pass some of {', '.join(map(repr, known))}.")
    wanted = [claim for claim in found if names is None or claim.name in names]
    return [judged for claim in wanted for judged in claim.judged(everything)]


def write_claims(path: str | Path, claims: Sequence[Claim]) -> None:
    """Write verdicts to a file, new or holding verdicts already."""
    path = Path(path)
    if path.exists() and b'"rankrise-claims/' not in path.read_bytes():
        raise RankriseError(f"{path} exists and holds no verdicts: pass the name of a new file.")
    write_json(path, {"format": FORMAT, "claims": [claim.to_dict() for claim in claims]})
