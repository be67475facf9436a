"""`rankrise claims`: does each claim of the paper hold on these runs?"""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.claims import Claim


def claims(
    runs: list[str],
    only: str | None = None,
    why: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Each claim that runs can decide: the verdict, what was measured, and the threshold.

    Toy runs are judged one by one, tracked runs by data set: those on one may differ in initialisation scale
    and seed. One claim compares two data sets.

    Args:
        runs: one or more folders of runs, or of sweeps.
        only: names of claims with commas between them (all).
        why: also say for each threshold why it is there.
        out: the file that keeps the verdicts; claims.json in the first folder if not given, without --only.
        json: print everything as JSON instead of a table.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.padding import Padding

    from rankrise import runs as recorded
    from rankrise.claims import check_claims, write_claims
    from rankrise.foundations.files import to_json

    names = None if only is None else [name.strip() for name in only.split(",")]
    checked = check_claims(recorded.open(runs), names)
    if out is not None or names is None:
        write_claims(out or Path(runs[0]) / "claims.json", checked)
    if json:
        print(to_json([claim.to_dict() for claim in checked]))
        return
    console = Console()
    for name, group in groupby(checked, key=lambda claim: claim.name):
        same = list(group)
        console.print(f"\n[bold]{name}: {same[0].statement}[/bold]", highlight=False)
        for claim in same:
            label = f"{escape(claim.data or claim.runs[0])}  " if len(same) > 1 else ""
            style = {"holds": "green", "does not hold": "red"}.get(claim.verdict, "yellow")
            verdict = f"{label}[{style}]{claim.verdict}[/{style}]: {escape(claim.reason)}"
            console.print(verdict, highlight=False)
            if claim.measures:
                console.print(Padding(_table(claim, why), (0, 0, 0, 2 if label else 0)))


def _table(claim: "Claim", why: bool) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for justify in ("left", "right", "left", "left", "left"):
        table.add_column(justify=justify)
    for measure in claim.measures:
        mark = {True: "yes", False: "no", None: "-"}[measure.passes]
        value = "-" if measure.value is None else f"{measure.value:.3g}"
        needed = f"needed {measure.needed}" if measure.needed else ""
        table.add_row(mark, value, needed, measure.name, measure.why if why else "")
    return table
