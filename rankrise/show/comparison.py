"""A comparison of two checkpoints as tables and files. Layers and heads count from 1 in both."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

from rankrise.foundations.files import write_json, write_text
from rankrise.show.console import plain_table, safe_console
from rankrise.show.pictures import csv_text
from rankrise.watch.types import MatrixChange, ModelComparison

if TYPE_CHECKING:
    from rich.table import Table

ROWS_SHOWN = 48
"""With more heads than this, the terminal shows one line for each layer."""
LEFT = ("layer", "matrix")
COLUMNS = {"relative_change": ".1e", "stable_rank": ".2f", "effective_rank": ".2f"}
COLUMNS |= dict.fromkeys(("energy_rank_90", "energy_rank_95", "energy_rank_99"), ".3g")
LEGEND = (
    "change: size of the change over that of the weights before. stable, effective: ranks of the change. "
    "90%, 95%, 99%: how many singular values hold that share of its energy, of as many as there can be (in a "
    "head up to twice its size, since the change is a difference of two products). Layers and heads are "
    "counted from 1."
)
MEANS = "Numbers are means over heads; ±: standard deviation of the stable rank over heads."


def print_comparison(comparison: ModelComparison, saved: Sequence[Path] = ()) -> None:
    """Print tables with what their columns mean, and where files were `saved`."""
    console = safe_console()
    each = len(comparison.rows) <= ROWS_SHOWN
    for table in _tables(comparison, each):
        console.print(table)
    if not any(row.largest for row in comparison.rows):
        console.print("Nothing changed: these weights are the same in both.")
    console.print(LEGEND if each else f"{LEGEND} {MEANS}", style="dim")
    for note in dict.fromkeys(re.sub(r"\d+", "*", note) for note in comparison.notes):
        console.print(f"Note: {note}", style="dim", markup=False)
    if saved:
        console.print(f"Written: {', '.join(map(str, saved))}", markup=False, soft_wrap=True)


def _tables(comparison: ModelComparison, each: bool) -> "list[Table]":
    """A table for each kind of layer; a line for each head, or means over the heads of a layer."""
    numbers = _layer_numbers(row.layer for row in comparison.rows)
    tables: dict[str, list[tuple[str, ...]]] = {}
    for line, of_line in groupby(
        comparison.rows, key=lambda row: (row.layer, row.matrix, row.head if each else 0)
    ):
        rows = list(of_line)
        heads = str(rows[0].head + 1) + (f"-{rows[-1].head + 1}" if len(rows) > 1 else "")
        spread = f"{pstdev(row.stable_rank for row in rows):.2f}" if len(rows) > 1 else ""
        change, stable, *others = (
            format(fmean(getattr(row, name) for row in rows), form) for name, form in COLUMNS.items()
        )
        cells = (numbers[line[0]], line[1], heads, change, stable, spread, *others, str(rows[0].full_rank))
        tables.setdefault(re.sub(r"\d+", "*", line[0]), []).append(cells)
    titles = (*LEFT, "head", "change", "stable", "±", "effective", "90%", "95%", "99%", "of")
    return [plain_table(titles, lines, LEFT, kind) for kind, lines in tables.items()]


def _layer_numbers(layers: Iterable[str]) -> dict[str, str]:
    """Layers counted from 1, with the numbers in their names where they differ, such as "2 (7)"."""
    numbers = {}
    for number, name in enumerate(dict.fromkeys(layers)):
        own = ".".join(re.findall(r"\d+", name))
        numbers[name] = f"{number + 1}" if own in ("", str(number)) else f"{number + 1} ({own})"
    return numbers


def save_comparison(comparison: ModelComparison, folder: Path) -> list[Path]:
    """Write every number to comparison.json, and a line per head and product to comparison.csv."""
    paths = [folder / "comparison.json", folder / "comparison.csv"]
    write_json(paths[0], asdict(comparison))
    names = [field.name for field in fields(MatrixChange)]
    rows = [(asdict(row) | {"head": row.head + 1}).values() for row in comparison.rows]
    write_text(paths[1], csv_text(names, map(list, rows)))
    return paths
