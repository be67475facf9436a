"""`rankrise claims`: does each claim of the paper hold on these runs?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.claims import Claim


def claims(runs: list[str], only: str | None = None, why: bool = False, json: bool = False) -> None:
    """Each claim that runs can decide: the verdict, what was measured, and the threshold.

    Toy runs are judged one by one, tracked runs all together: some claims compare runs at several
    initialisation scales, or on two data sets. The verdicts are kept in claims.json in the first folder.

    Args:
        runs: one or more folders of runs, or of sweeps.
        only: names of claims with commas between them (all).
        why: also say for each threshold why it is there.
        json: print everything as JSON instead of a table.
    """
    from rich.console import Console

    from rankrise.claims import check_claims, write_claims
    from rankrise.files import to_json

    names = None if only is None else [name.strip() for name in only.split(",")]
    checked = check_claims(runs, names)
    if names is None:
        write_claims(runs[0], checked)
    if json:
        print(to_json([claim.to_dict() for claim in checked]))
        return
    console = Console()
    for number, claim in enumerate(checked):
        if len(runs) > 1 and (number == 0 or claim.runs != checked[number - 1].runs):
            console.print(f"\n{', '.join(claim.runs)}", highlight=False, markup=False)
        console.print(f"\n[bold]{claim.statement}[/bold]", highlight=False)
        style = {"holds": "green", "does not hold": "red"}.get(claim.verdict, "yellow")
        console.print(f"[{style}]{claim.verdict}[/{style}]: {claim.reason}", highlight=False)
        if claim.measures:
            console.print(_table(claim, why))


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
