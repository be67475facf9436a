"""Functional ranks in the terminal: how few directions of a change keep what training gained."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rankrise.show.console import plain_table
from rankrise.use.types import Truncation


def print_truncation(truncation: Truncation, measured_on: str, gain: float, written: Sequence[Path]) -> None:
    """Print the functional ranks, and which rank is enough."""
    rows = []
    for curve in truncation.curves:
        losses = f"{curve.initial['loss']:.4g}", f"{truncation.trained['loss']:.4g}"
        rank = "none" if curve.functional_rank is None else str(curve.functional_rank)
        rows.append((curve.group, curve.method, *losses, rank, str(curve.full_rank)))
    titles = ("group", "method", "initial loss", "trained loss", "functional rank", "full rank")
    console = Console()
    console.print(plain_table(titles, rows, ("group", "method"), "Functional rank"))
    note = (
        f"The loss is that of {measured_on}. One group is cut at a time and the rest stays tuned, so the "
        f"initial loss differs from group to group; that of the whole base is {truncation.base['loss']:.4g}. "
        "A functional rank says little where the two losses hardly differ."
    )
    ways = {
        "plain": "rank {} for every matrix",
        "weighted": "the parameters of rank {}, spent where they matter",
    }
    of_all = [one for one in truncation.curves if one.group == "all" and one.functional_rank is not None]
    if of_all:
        enough = ", or ".join(ways[one.method].format(one.functional_rank) for one in of_all)
        note += f"\nEnough to keep {100 * gain:g} % of the gain: {enough}."
    console.print(note, markup=False, highlight=False)
    if written:
        console.print(f"Written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)
