"""A comparison of two checkpoints as a picture, layers by heads, with its numbers beside it."""

from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rankrise.foundations.files import write_json, write_text
from rankrise.show.csv_text import csv_text
from rankrise.show.pictures import save_picture
from rankrise.watch.types import HeadOverlap, MatrixChange, ModelComparison, ModelOverlap


def as_json(comparison: ModelComparison, overlap: ModelOverlap | None) -> dict[str, Any]:
    """Every number of both."""
    return comparison.to_dict() | ({} if overlap is None else {"overlap": overlap.to_dict()})


def save_comparison(
    comparison: ModelComparison, folder: str | Path, overlap: ModelOverlap | None = None
) -> list[Path]:
    """Write comparison.json, .csv, .png and .svg to `folder`, and give their paths; an overlap is in the JSON
    and has a CSV of its own."""
    folder = Path(folder)
    paths = [folder / "comparison.json", folder / "comparison.csv"]
    write_json(paths[0], as_json(comparison, overlap))
    write_text(paths[1], to_csv(comparison.rows))
    paths += save_picture(draw_comparison(comparison), folder, "comparison")
    if overlap is not None:
        paths.append(folder / "overlap.csv")
        write_text(paths[-1], to_csv(overlap.rows))
    return paths


def draw_comparison(comparison: ModelComparison) -> Figure:
    """Stable rank, 95 % energy rank and relative size of the change of KQ and of VO: a square for each layer
    and head, both counted from 1. Each panel has its own colours from 0 on, as KQ and VO may differ by much.
    """
    measures = {
        "stable_rank": "stable rank of the change",
        "energy_rank_95": "directions with 95 % of its energy",
        "relative_change": "change / weights before",
    }
    layers = list(dict.fromkeys(row.layer for row in comparison.rows if row.head is not None))
    widest = max((row.head for row in comparison.rows if row.head is not None), default=0) + 1
    size = (2.6 + 0.22 * min(widest, 40)) * 2, (1.4 + 0.2 * min(len(layers), 60)) * len(measures)
    figure = Figure(figsize=(max(size[0], 8.0), max(size[1], 7.5)), layout="constrained")
    axes = figure.subplots(len(measures), 2, squeeze=False)
    edges = (0.5, widest + 0.5, len(layers) + 0.5, 0.5)
    for line, (field, label) in zip(axes, measures.items(), strict=True):
        for place, matrix in zip(line, ("KQ", "VO"), strict=True):
            grid = _grid(comparison.select(matrix), field, layers, widest)
            top = float(np.nanmax(grid, initial=0.0)) or 1.0
            image = place.imshow(
                grid,
                vmin=0.0,
                vmax=top,
                cmap="viridis",
                aspect="auto",
                interpolation="nearest",
                extent=edges,
            )
            place.set_title(f"{'$W_K W_Q^T$' if matrix == 'KQ' else '$W_V W_O^T$'}: {label}", fontsize=9)
            place.set_xlabel("head")
            place.set_ylabel("layer")
            place.set_xticks(_ticks(widest))
            place.set_yticks(_ticks(len(layers)))
            figure.colorbar(image, ax=place, shrink=0.9)
    return figure


def _ticks(count: int) -> range:
    """Numbers from 1 to at most `count`, a dozen or so.

    >>> list(_ticks(3)), list(_ticks(32))
    ([1, 2, 3], [1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31])
    """
    return range(1, count + 1, -(-count // 12))


def to_csv(rows: Sequence[MatrixChange] | Sequence[HeadOverlap]) -> str:
    """One line per row, with the fields' names on top; heads count from 1, as in the picture, and several
    numbers in a field are set apart by spaces."""
    numbered = (row if row.head is None else replace(row, head=row.head + 1) for row in rows)
    lines = (
        [" ".join(map(str, cell)) if isinstance(cell, tuple) else cell for cell in asdict(row).values()]
        for row in numbered
    )
    return csv_text([field.name for field in fields(rows[0])], lines)


def _grid(rows: Sequence[MatrixChange], field: str, layers: Sequence[str], widest: int) -> np.ndarray:
    """[layers, heads], nan where a layer has fewer heads."""
    grid = np.full((len(layers), widest), np.nan)
    for row in rows:
        grid[layers.index(row.layer), row.head] = getattr(row, field)
    return grid
