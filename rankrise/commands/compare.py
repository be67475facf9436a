"""`rankrise compare`: what did training change, layer by layer and head by head?"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from rankrise.watch.types import MatrixChange, ModelComparison

# With more rows than this, the terminal shows one line for each layer.
ROWS_SHOWN = 48

LEGEND = (
    "change: size of the change over that of the weights before. stable, effective: ranks of the change "
    "(means over heads, ± over heads). 90%, 95%, 99%: how many singular values hold that part of its energy. "
    ">: how many exceed that part of the largest, of as many as there are."
)


def compare(
    before: str,
    after: str,
    all_matrices: bool = False,
    out: Path | None = None,
    json: bool = False,
    threshold: float = 1e-3,
    device: str | None = None,
) -> None:
    """Ranks and sizes of what changed between two checkpoints, for every layer and head.

    Args:
        before: safetensors file or folder with its config.json, or a model's name on the Hugging Face Hub.
        after: the same model later, for example after fine-tuning.
        all_matrices: also compare every weight matrix as it is stored (slower).
        out: folder for the table (CSV, JSON) and a picture of layers by heads (PNG, SVG).
        json: print everything as JSON instead of a table.
        threshold: count singular values above this share of the largest.
        device: where to compute, for example cuda; the CPU if not given.
    """
    from rich.console import Console

    from rankrise.foundations.files import to_json
    from rankrise.show.progress import bar
    from rankrise.show.table import Fitting
    from rankrise.watch import compare as compare_checkpoints

    with bar("comparing", total=1.0) as move_to:
        comparison = compare_checkpoints(
            before, after, all_matrices=all_matrices, threshold=threshold, device=device, progress=move_to
        )
    if out is not None:
        from rankrise.show.comparison import save_comparison

        saved = save_comparison(comparison, out)
    if json:
        print(to_json(comparison.to_dict()))
        return
    console = Console()
    for table in _tables(comparison):
        console.print(Fitting(table))
    console.print(LEGEND, style="dim")
    for note in _gathered(comparison.notes):
        console.print(f"Note: {note}", style="dim", markup=False)
    if out is not None:
        console.print(f"Written: {', '.join(str(path) for path in saved)}", markup=False, soft_wrap=True)


def _tables(comparison: "ModelComparison") -> "list[Table]":
    """A table for each kind of layer; a line for each head, or for each layer where there are many heads."""
    from rich.table import Table

    each = sum(row.head is not None for row in comparison.rows) <= ROWS_SHOWN
    kinds: dict[str, dict[tuple[str, str, int | None], list[MatrixChange]]] = {}
    for row in comparison.rows:
        lines = kinds.setdefault(re.sub(r"\d+", "*", row.layer), {})
        number = ".".join(re.findall(r"\d+", row.layer))
        lines.setdefault((number, row.matrix, row.head if each else None), []).append(row)
    titles = ["layer", "matrix", "head", "change", "stable", "±", "effective", "90%", "95%", "99%"]
    titles += [f">{comparison.threshold:g}", "of"]
    tables = []
    for kind, lines in kinds.items():
        table = Table(title=kind, box=None, padding=(0, 1, 0, 0), title_justify="left")
        for title in titles:
            table.add_column(title, justify="left" if title in ("layer", "matrix") else "right")
        for (number, matrix, _), rows in lines.items():
            table.add_row(number, matrix, *_numbers(rows))
        tables.append(table)
    return tables


def _numbers(rows: "list[MatrixChange]") -> list[str]:
    """The heads, means over them, and the standard deviation of their stable ranks."""
    from statistics import fmean, pstdev

    first, last = rows[0].head, rows[-1].head
    stable = [row.stable_rank for row in rows]
    counts = ("energy_rank_90", "energy_rank_95", "energy_rank_99", "rank_above")
    return [
        "" if first is None else f"{first}" if first == last else f"{first}-{last}",
        f"{fmean(row.relative_change for row in rows):.1e}",
        f"{fmean(stable):.2f}",
        f"{pstdev(stable):.2f}" if len(rows) > 1 else "",
        f"{fmean(row.effective_rank for row in rows):.2f}",
        *(f"{fmean(getattr(row, name) for row in rows):.3g}" for name in counts),
        str(rows[0].full_rank),
    ]


def _gathered(notes: tuple[str, ...]) -> list[str]:
    """Each note once, with the layers it belongs to."""
    layers: dict[str, list[str]] = {}
    for note in notes:
        layer, _, text = note.partition(": ")
        layers.setdefault(text, []).append(layer)
    return [
        f"{text} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for text, names in layers.items()
    ]
