"""`rankrise claims`: what the claims of the paper and of its reproduction come to on these runs."""

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.claims import Claim, Measure

LEGEND = (
    "yes, no: whether the number passes. ?: the threshold lies within its interval, or the number is not "
    "known. -: it decides nothing, because it is for information or because the claim is not judged on these "
    "runs. [low, high]: "
)
NARROWEST = 20
"""Letters of a measure's name in a line; where there is no room for them, there is no table."""
WHY = "Pass --why for the reason behind each threshold."


def claims(
    runs: list[str],
    only: str | None = None,
    judge: bool = False,
    why: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Each claim that runs can decide: the effect by layer with its interval, the measures, the verdict.

    Toy runs are judged one by one, tracked runs by data set and product: those on one data set may differ in
    initialisation scale and seed. Some claims compare two data sets.

    Args:
        runs: one or more folders of runs, or of sweeps.
        only: names of claims with commas between them (all).
        judge: also give verdicts on runs that a claim is not about: fine-tunings, your own runs, and runs
            that have hardly learned.
        why: also say for each threshold why it is there.
        out: the file that keeps the verdicts; claims.json in the first folder if not given, without --only.
        json: print everything as JSON instead of a table.
    """
    from rich.markup import escape
    from rich.padding import Padding

    from rankrise import runs as recorded
    from rankrise.claims import INTERVALS, check_claims, write_claims
    from rankrise.foundations.files import to_json
    from rankrise.show.console import safe_console
    from rankrise.show.table import Fitting

    names = None if only is None else [name.strip() for name in only.split(",")]
    checked = check_claims(recorded.open(runs), names, everything=judge)
    kept = out or (Path(runs[0]) / "claims.json" if names is None else None)
    if kept is not None:
        write_claims(kept, checked)
    if json:
        print(to_json([claim.to_dict() for claim in checked]))
        return
    console = safe_console()
    for _, group in groupby(checked, key=lambda claim: claim.name):
        same = list(group)
        heading = f"{same[0].name} ({same[0].source}'s): {same[0].statement}"
        console.print(f"\n[bold]{escape(heading)}[/bold]", highlight=False)
        for claim in same:
            style = {"holds": "green", "does not hold": "red"}.get(claim.verdict, "yellow")
            verdict = f"[{style}]{claim.verdict}[/{style}]: {escape(claim.reason)}"
            console.print(f"{escape(claim.subject)}  {verdict}", highlight=False)
            if claim.effects:
                line = "; ".join(f"layer {one.layer} {_number(one)}" for one in claim.effects)
                console.print(Padding(f"{claim.effects[0].name}: {line}", (0, 0, 0, 2)), highlight=False)
            if claim.measures:
                console.print(Padding(Fitting(_table(claim, why)), (0, 0, 0, 2)))
    if any(claim.measures for claim in checked):
        legend = f"\n{LEGEND}{INTERVALS}.{'' if why else f' {WHY}'}"
        console.print(legend, style="dim", markup=False, highlight=False)
    if kept is not None:
        console.print(f"Written: {kept}", markup=False, highlight=False, soft_wrap=True)


def _table(claim: "Claim", why: bool) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(min_width=NARROWEST)
    for measure in (*claim.deciding, *claim.choices, *claim.beside):
        open_mark = "?" if measure.needed and claim.verdict != "not judged" else "-"
        mark = {True: "yes", False: "no", None: open_mark}[measure.passes]
        needed = f"needed {measure.needed}" if measure.needed else ""
        name = f"{measure.name}, with {measure.choice}" if measure.choice else measure.name
        reason = (f"\nwhy: {measure.why}", "dim") if why and measure.why else ""
        table.add_row(mark, _number(measure), needed, Text.assemble(name, reason))
    return table


def _number(measure: "Measure") -> str:
    """A value with its interval: "0.542 [0.49, 0.61]"."""
    if measure.value is None:
        return "-"
    bounds = "" if measure.interval is None else f" [{measure.interval[0]:.3g}, {measure.interval[1]:.3g}]"
    return f"{measure.value:.3g}{bounds}"
