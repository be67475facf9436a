"""A comparison of two checkpoints as tables, files and a picture. Layers and heads count from 1 in all."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from itertools import groupby
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

from rankrise.foundations.files import write_json, write_text
from rankrise.show.pictures import csv_text, save_picture
from rankrise.show.tables import plain_table
from rankrise.watch.types import HeadOverlap, MatrixChange, ModelComparison, ModelOverlap

ROWS_SHOWN = 48  # with more heads, the terminal shows one line for each layer
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
OVERLAP_LEGEND = (
    "left (keys or values), right (queries or outputs): the share of one change's leading directions that "
    "lies in the other's, mean over heads; chance: what random directions would have."
)


def as_dict(comparison: ModelComparison, overlap: ModelOverlap | None) -> dict[str, Any]:
    """Every number of both."""
    return asdict(comparison) | ({} if overlap is None else {"overlap": asdict(overlap)})


def print_comparison(found: ModelComparison, overlap: ModelOverlap | None, saved: Sequence[Path]) -> None:
    """Print tables with what their columns mean, and where files were `saved`."""
    console = Console()
    each = len(found.rows) <= ROWS_SHOWN
    for table in _tables(found, each):
        console.print(table)
    if not any(row.largest for row in found.rows):
        console.print("Nothing changed: these weights are the same in both.")
    console.print(LEGEND if each else f"{LEGEND} {MEANS}", style="dim")
    if overlap is not None:
        console.print(_overlap_table(overlap))
        console.print(OVERLAP_LEGEND, style="dim")
    for note in dict.fromkeys(re.sub(r"\d+", "*", note) for note in found.notes):
        console.print(f"Note: {note}", style="dim", markup=False)
    if saved:
        console.print(f"Written: {', '.join(map(str, saved))}", markup=False, soft_wrap=True)


def _tables(found: ModelComparison, each: bool) -> list[Table]:
    """A table for each kind of layer; a line for each head, or means over the heads of a layer."""
    numbers = _layer_numbers(row.layer for row in found.rows)
    tables: dict[str, list[tuple[str, ...]]] = {}
    for line, same in groupby(found.rows, key=lambda row: (row.layer, row.matrix, row.head if each else 0)):
        rows = list(same)
        heads = str(rows[0].head + 1) + (f"-{rows[-1].head + 1}" if len(rows) > 1 else "")
        spread = f"{pstdev(row.stable_rank for row in rows):.2f}" if len(rows) > 1 else ""
        means = [format(fmean(getattr(row, name) for row in rows), form) for name, form in COLUMNS.items()]
        number, of = numbers[line[0]], str(rows[0].full_rank)
        cells = (number, line[1], heads, *means[:2], spread, *means[2:], of)
        tables.setdefault(re.sub(r"\d+", "*", line[0]), []).append(cells)
    titles = (*LEFT, "head", "change", "stable", "±", "effective", "90%", "95%", "99%", "of")
    return [plain_table(titles, lines, LEFT, kind) for kind, lines in tables.items()]


def _overlap_table(overlap: ModelOverlap) -> Table:
    """A line for each layer and product, means over the heads that changed."""
    numbers = _layer_numbers(row.layer for row in overlap.rows)
    names = ("directions", "left", "left_by_chance", "right", "right_by_chance")
    table = []
    for (layer, matrix), of_line in groupby(overlap.rows, key=lambda row: (row.layer, row.matrix)):
        rows = [row for row in of_line if row.left is not None]
        means = [f"{fmean(getattr(row, name) for row in rows):.2f}" if rows else "-" for name in names]
        table.append((numbers[layer], matrix, *means))
    titles = (*LEFT, "directions", "left", "chance", "right", "chance")
    return plain_table(titles, table, LEFT, "overlap of learned directions")


def _layer_numbers(layers: Iterable[str]) -> dict[str, str]:
    """Layers counted from 1, with the numbers in their names where they differ, such as "2 (7)"."""
    numbers = {}
    for number, name in enumerate(dict.fromkeys(layers)):
        own = ".".join(re.findall(r"\d+", name))
        numbers[name] = f"{number + 1}" if own in ("", str(number)) else f"{number + 1} ({own})"
    return numbers


def save_comparison(found: ModelComparison, folder: Path, overlap: ModelOverlap | None) -> list[Path]:
    """Write comparison.json, .csv, .png and .svg; an overlap is in the JSON and has its own CSV."""
    paths = [folder / "comparison.json", folder / "comparison.csv"]
    write_json(paths[0], as_dict(found, overlap))
    write_text(paths[1], _to_csv(found.rows))
    paths += save_picture(draw_comparison(found), folder, "comparison")
    if overlap is not None:
        paths.append(folder / "overlap.csv")
        write_text(paths[-1], _to_csv(overlap.rows))
    return paths


def _to_csv(rows: Sequence[MatrixChange] | Sequence[HeadOverlap]) -> str:
    lines = [list((asdict(row) | {"head": row.head + 1}).values()) for row in rows]
    return csv_text([field.name for field in fields(rows[0])], lines)


def draw_comparison(comparison: ModelComparison) -> Figure:
    """The ranks and size of the change of KQ and VO, a square for each layer and head; colours begin at 0."""
    measures = {
        "stable_rank": "stable rank of the change",
        "energy_rank_95": "directions with 95 % of its energy",
        "relative_change": "change / weights before",
    }
    layers = list(dict.fromkeys(row.layer for row in comparison.rows))
    widest = 1 + max((row.head for row in comparison.rows), default=0)
    width, height = (2.6 + 0.22 * min(widest, 40)) * 2, (1.4 + 0.2 * min(len(layers), 60)) * len(measures)
    figure = Figure(figsize=(max(width, 8.0), max(height, 7.5)), layout="constrained")
    edges = (0.5, widest + 0.5, len(layers) + 0.5, 0.5)
    across, down = (range(1, count + 1, -(-count // 12)) for count in (widest, len(layers)))
    for row, (field, label) in zip(figure.subplots(len(measures), 2), measures.items(), strict=True):
        for axes, matrix in zip(row, ("KQ", "VO"), strict=True):
            grid = np.full((len(layers), widest), np.nan)
            for change in comparison.select(matrix):
                grid[layers.index(change.layer), change.head] = getattr(change, field)
            top = float(np.nanmax(grid, initial=0.0)) or 1.0
            image = axes.imshow(grid, vmin=0, vmax=top, aspect="auto", interpolation="nearest", extent=edges)
            axes.set_title(f"{'$W_K W_Q^T$' if matrix == 'KQ' else '$W_V W_O^T$'}: {label}", fontsize=9)
            axes.set(xlabel="head", ylabel="layer", xticks=across, yticks=down)
            figure.colorbar(image, ax=axes, shrink=0.9)
    return figure
