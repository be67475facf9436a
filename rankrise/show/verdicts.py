"""Verdicts on claims in a terminal: in short, with what would turn each; or with every number."""

from collections.abc import Sequence
from itertools import groupby

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from rankrise.claims.claim import INTERVALS, Claim, Measure

STYLES = {"holds": "green", "does not hold": "red"}
LEGEND = (
    "yes, no: whether the number passes. ?: the threshold lies within its interval, or the number is not "
    "known. -: the claim is not judged on these runs. "
    f"[low, high]: {INTERVALS}; for a rank found by trying some, the least and the most it can be."
)
NAMED = 2  # of the runs left out


def print_verdicts(console: Console, claims: Sequence[Claim]) -> None:
    """Print the verdicts by subject and source, then what is not judged and which runs are left out."""
    for subject in dict.fromkeys(claim.data or claim.runs[0] for claim in claims):
        ours = [claim for claim in claims if (claim.data or claim.runs[0]) == subject]
        judged = [claim for claim in ours if claim.verdict != "not judged"]
        for source in dict.fromkeys(claim.source for claim in judged):
            console.print(Text(f"\n{subject}: {source}'s claims", "bold"))
            table, before = _table("left", False), ""
            for claim in (claim for claim in judged if claim.source == source):
                turned = f"but {claim.otherwise}" if claim.otherwise else ""
                name, before = "" if claim.name == before else claim.name, claim.name
                table.add_row(name, claim.part, _verdict(claim), turned if claim.measures else claim.reason)
            console.print(table)
        for reason in dict.fromkeys(claim.reason for claim in ours if claim not in judged):
            same = [claim for claim in ours if claim not in judged and claim.reason == reason]
            names = ", ".join(dict.fromkeys(claim.name for claim in same))
            console.print(Text(f"\nNot judged on {subject}: {names}. {reason}"))
        if left_out := runs_left_out(ours):
            console.print(Text(f"\n{left_out}"))
    some = any(claim.otherwise and claim.measures for claim in claims if claim.verdict != "not judged")
    but = "'but': the verdict that another choice, made alone, would give. " if some else ""
    console.print(Text(f"\n{but}Pass --all for every claim's sentence and numbers.", "dim"))


def print_measures(console: Console, claims: Sequence[Claim], why: bool = False) -> None:
    """Print each claim, then on each subject its verdict, what would turn it, its effects and its numbers."""
    for _, group in groupby(claims, key=lambda claim: claim.name):
        same = list(group)
        heading = f"\n{same[0].name} ({same[0].source}'s): {same[0].statement}"
        console.print(Text(heading, "bold"))
        for claim in same:
            reason = f": {claim.reason} {claim.turned}".rstrip()
            console.print(Text.assemble(f"{claim.subject}  ", _verdict(claim), reason))
            if claim.effects:
                line = "; ".join(f"layer {one.layer} {number_of(one)}" for one in claim.effects)
                console.print(Padding(Text(f"{claim.effects[0].name}: {line}"), (0, 0, 0, 2)))
            if claim.measures:
                console.print(Padding(_measure_table(claim, why), (0, 0, 0, 2)))
    if any(claim.measures for claim in claims):
        more = "" if why else " Pass --why for the reason behind each threshold."
        console.print(Text(f"\n{LEGEND}{more}", "dim"))
    if left_out := runs_left_out(claims):
        console.print(Text(left_out))


def runs_left_out(claims: Sequence[Claim]) -> str:
    """A sentence on runs that no claim was judged on; "" if there are none."""
    used = {run for claim in claims for run in claim.runs}
    found = list(dict.fromkeys(run for claim in claims for run in claim.left_out if run not in used))
    if not found:
        return ""
    more = f" and {len(found) - NAMED} more" if len(found) > NAMED else ""
    named = ", ".join(found[:NAMED])
    return f"Left out: {named}{more}. Runs with other settings are judged apart: pass them alone."


def number_of(measure: Measure) -> str:
    """A value with its interval, such as "0.542 [0.49, 0.61]"."""
    if measure.value is None:
        return "-"
    bounds = "" if measure.interval is None else " [{:.3g}, {:.3g}]".format(*measure.interval)
    return f"{measure.value:.3g}{bounds}"


def _measure_table(claim: Claim, why: bool) -> Table:
    """The deciding measures, and those that another choice changes."""
    table = _table("right", True)
    decided = {(one.name, one.value, one.needed) for one in claim.deciding}
    others = [one for one in claim.choices if one.value is not None]
    changed = [one for one in others if (one.name, one.value, one.needed) not in decided]
    for measure in (*claim.deciding, *changed):
        open_mark = "?" if measure.needed and claim.verdict != "not judged" else "-"
        mark = {True: "yes", False: "no", None: open_mark}[measure.passes]
        name = f"{measure.name}, but by {measure.choice}" if measure.choice else measure.name
        needed = f"needed {measure.needed}" if measure.needed else ""
        reason = (f"\nwhy: {measure.why}", "dim") if why and measure.why else ""
        table.add_row(mark, number_of(measure), needed, Text.assemble(name, reason))
    return table


def _table(second: str, whole: bool) -> Table:
    """Three columns and a last one for sentences; the second is justified so, and is kept whole or wraps."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(justify=second, no_wrap=whole)  # type: ignore[arg-type]
    table.add_column(no_wrap=True)
    table.add_column(min_width=20)
    return table


def _verdict(claim: Claim) -> Text:
    return Text(claim.verdict, STYLES.get(claim.verdict, "yellow"))
