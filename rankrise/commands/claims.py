"""`rankrise claims`: does each claim of the paper hold on this run?"""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.claims import Claim


def claims(run: Path, only: str | None = None, json: bool = False) -> None:
    """Each claim that a run can decide: what was measured, the threshold and why it is there, the verdict.

    Args:
        run: folder written by 'rankrise toy'.
        only: names of claims with commas between them (all).
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
            console.print(_table(claim))


def _table(claim: "Claim") -> "Table":
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for title, justify in (
        ("", "left"),
        ("measured", "left"),
        ("value", "right"),
        ("needed", "right"),
        ("why there", "left"),
    ):
        table.add_column(title, justify=justify)  # type: ignore[arg-type]
    for measure in claim.measures:
        mark = {True: "yes", False: "no", None: "-"}[measure.passes]
        value = "-" if measure.value is None else f"{measure.value:.3g}"
        table.add_row(mark, measure.name, value, measure.needed, measure.why)
    return table
