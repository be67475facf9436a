"""`rankrise claims`: does each claim of the paper hold on this run?"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.claims import Claim


def claims(run: Path, only: str | None = None, why: bool = False, json: bool = False) -> None:
    """Each claim that a run can decide: the verdict, what was measured, and the threshold.

    Args:
        run: folder written by 'rankrise toy'.
        only: names of claims with commas between them (all).
        why: also say for each threshold why it is there.
        json: print everything as JSON instead of a table.
    """
    from rich.console import Console

    from rankrise.claims import check_claims, write_claims
    from rankrise.files import to_json

    names = None if only is None else [name.strip() for name in only.split(",")]
    checked = check_claims(run, names)
    if names is None:
        write_claims(run, checked)
    if json:
        print(to_json([claim.to_dict() for claim in checked]))
        return
    console = Console()
    for claim in checked:
        console.print(f"\n[bold]{claim.statement}[/bold]", highlight=False)
        style = {"holds": "green", "does not hold": "red"}.get(claim.verdict, "yellow")
        console.print(f"[{style}]{claim.verdict}[/{style}]: {claim.reason}", highlight=False)
        if claim.measures:
            console.print(_table(claim, why))


def _table(claim: "Claim", why: bool) -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for justify in ("left", "right", "left", "left", "left"):
        table.add_column(justify=justify)  # type: ignore[arg-type]
    for measure in claim.measures:
        mark = {True: "yes", False: "no", None: "-"}[measure.passes]
        value = "-" if measure.value is None else f"{measure.value:.3g}"
        needed = f"needed {measure.needed}" if measure.needed else ""
        table.add_row(mark, value, needed, measure.name, measure.why if why else "")
    return table
