"""`rankrise compare`: what did training change, layer by layer and head by head?"""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from rankrise.watch.types import HeadOverlap, MatrixChange, ModelComparison, ModelOverlap

ROWS_SHOWN = 48
"""With more rows than this, the terminal shows one line for each layer."""
PLAIN: dict[str, Any] = {"box": None, "padding": (0, 1, 0, 0), "title_justify": "left"}

LEGEND = (
    "change: size of the change over that of the weights before. stable, effective: ranks of the change. "
    "90%, 95%, 99%: how many singular values hold that share of its energy. >: how many exceed that fraction "
    "of the largest, of as many as there can be (in a head up to twice its size, since the change is a "
    "difference of two products; by an adapter up to the ranks of both factors together). Layers and heads "
    "are counted from 1."
)
MEANS = "Numbers are means over heads; ±: standard deviation of the stable rank over heads."
OVERLAP_LEGEND = (
    "left (keys or values), right (queries or outputs): the share of one change's leading directions that "
    "lies in the other's, mean over heads; chance: what random directions would have."
)


def compare(
    before: str,
    after: str,
    overlap: str | None = None,
    overlap_before: str | None = None,
    directions: int = 4,
    all_matrices: bool = False,
    out: Path | None = None,
    json: bool = False,
    threshold: float = 1e-3,
    device: str | None = None,
) -> None:
    """Measure the rank and size of what changed between two checkpoints, in every layer and head.

    Args:
        before: safetensors file or folder with its config.json, or a model's name on the Hugging Face Hub; or
            a tracked run, for its initial weights.
        after: the same model later, for example after fine-tuning; or the folder of a PEFT adapter of it; or
            a run of 'rankrise train', for its newest checkpoint.
        overlap: a second training of the same model, to measure how far both learned the same directions.
        overlap_before: what the second training began from, if it is not BEFORE; for a run, its own initial
            weights if not given.
        directions: how many leading directions of each change are compared for the overlap.
        all_matrices: also compare every weight matrix as it is stored (slower).
        out: folder for the table (CSV, JSON) and a picture of layers by heads (PNG, SVG).
        json: print everything as JSON instead of a table.
        threshold: count singular values above this share of the largest.
        device: where to compute, for example cuda; the CPU if not given.
    """
    from rankrise import watch
    from rankrise.foundations.device import usable
    from rankrise.foundations.files import to_json
    from rankrise.foundations.notes import gathered
    from rankrise.show.console import safe_console
    from rankrise.show.progress import bar
    from rankrise.show.table import Fitting

    if device is not None:
        usable(device)
    with bar("comparing", total=1.0) as move_to:
        comparison = watch.compare(
            before, after, all_matrices=all_matrices, threshold=threshold, device=device, progress=move_to
        )
    shared = None
    if overlap is not None:
        with bar("overlap", total=1.0) as move_to:
            shared = watch.overlap(
                before,
                after,
                overlap,
                second_before=overlap_before,
                directions=directions,
                device=device,
                progress=move_to,
            )
    if out is not None:
        from rankrise.show.comparison import save_comparison

        saved = save_comparison(comparison, out, shared)
    if json:
        from rankrise.show.comparison import as_json

        print(to_json(as_json(comparison, shared)))
        return
    console = safe_console()
    tables = _tables(comparison)
    for table in tables:
        console.print(Fitting(table))
    if not any(row.largest for row in comparison.rows):
        console.print("Nothing changed: these weights are the same in both.")
    means = any(column.header == "±" for table in tables for column in table.columns)
    console.print(f"{LEGEND} {MEANS}" if means else LEGEND, style="dim")
    if shared is not None:
        console.print(Fitting(_overlap_table(shared)))
        console.print(OVERLAP_LEGEND, style="dim")
    for note in gathered(_split(note) for note in comparison.notes):
        console.print(f"Note: {note}", style="dim", markup=False)
    if out is not None:
        console.print(f"Written: {', '.join(str(path) for path in saved)}", markup=False, soft_wrap=True)


def _tables(comparison: "ModelComparison") -> "list[Table]":
    """A table for each kind of layer; a line for each head, or for each layer where there are many heads."""
    from rankrise.show.table import table_of

    each = sum(row.head is not None for row in comparison.rows) <= ROWS_SHOWN
    numbers = _layer_numbers(row.layer for row in comparison.rows if row.head is not None)
    kinds: dict[str, dict[tuple[str, str, int | None], list[MatrixChange]]] = {}
    for row in comparison.rows:
        lines = kinds.setdefault(_kind(row.layer), {})
        number = numbers[row.layer] if row.head is not None else _own_numbers(row.layer)
        lines.setdefault((number, row.matrix, row.head if each else None), []).append(row)
    tables = []
    for kind, lines in kinds.items():
        cells = [
            {"layer": number, "matrix": matrix} | _numbers(rows, comparison.threshold)
            for (number, matrix, _), rows in lines.items()
        ]
        columns = {title: [line[title] for line in cells] for title in cells[0]}
        tables.append(table_of(columns, left=("layer", "matrix"), title=kind, **PLAIN))
    return tables


def _overlap_table(shared: "ModelOverlap") -> "Table":
    """One line for each layer and product, means over heads; what a head has is in the JSON."""
    from statistics import fmean

    from rich.table import Table

    table = Table(title="overlap of learned directions", **PLAIN)
    for title in ("layer", "matrix", "heads", "directions", "left", "chance", "right", "chance"):
        table.add_column(title, justify="left" if title in ("layer", "matrix") else "right")
    numbers = _layer_numbers(row.layer for row in shared.rows)
    lines: dict[tuple[str, str], list[HeadOverlap]] = {}
    for row in shared.rows:
        lines.setdefault((numbers[row.layer], row.matrix), []).append(row)
    for (number, matrix), rows in lines.items():
        known = [row for row in rows if row.left is not None and row.right is not None]
        cells = ["left", "left_by_chance", "right", "right_by_chance"]
        means = [f"{fmean(getattr(row, cell) for row in known):.2f}" if known else "-" for cell in cells]
        count = f"{fmean(row.directions for row in rows):.3g}"
        table.add_row(number, matrix, str(len(rows)), count, *means)
    return table


def _layer_numbers(layers: "Iterable[str]") -> dict[str, str]:
    """Layers counted from 1 in the model's order; what their names count is beside it where it is not that.

    >>> _layer_numbers(["h.0.attn", "h.1.attn"])
    {'h.0.attn': '1', 'h.1.attn': '2'}
    >>> _layer_numbers(["layers.3.attn", "layers.7.attn"])
    {'layers.3.attn': '1 (3)', 'layers.7.attn': '2 (7)'}
    """
    names = list(dict.fromkeys(layers))
    counted = {name: ".".join(re.findall(r"\d+", name)) for name in names}
    return {
        name: f"{number}" if counted[name] in ("", str(number - 1)) else f"{number} ({counted[name]})"
        for number, name in enumerate(names, start=1)
    }


def _own_numbers(name: str) -> str:
    """The numbers in the name of a weight, counted from 1.

    >>> _own_numbers("layers.0.blocks.3.mlp.weight")
    '1.4'
    """
    return ".".join(str(int(number) + 1) for number in re.findall(r"\d+", name))


def _kind(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _numbers(rows: "list[MatrixChange]", threshold: float) -> dict[str, str]:
    """The heads, means over them, and the standard deviation of their stable ranks, by column."""
    from statistics import fmean, pstdev

    first, last = rows[0].head, rows[-1].head
    stable = [row.stable_rank for row in rows]
    heads = "" if first is None or last is None else f"{first + 1}" + f"-{last + 1}" * (first != last)
    return {
        "head": heads,
        "change": f"{fmean(row.relative_change for row in rows):.1e}",
        "stable": f"{fmean(stable):.2f}",
        "±": f"{pstdev(stable):.2f}" if len(rows) > 1 else "",
        "effective": f"{fmean(row.effective_rank for row in rows):.2f}",
        "90%": f"{fmean(row.energy_rank_90 for row in rows):.3g}",
        "95%": f"{fmean(row.energy_rank_95 for row in rows):.3g}",
        "99%": f"{fmean(row.energy_rank_99 for row in rows):.3g}",
        f">{threshold:g}": f"{fmean(row.rank_above for row in rows):.3g}",
        "of": str(rows[0].full_rank),
    }


def _split(note: str) -> tuple[str, str]:
    layer, _, text = note.partition(": ")
    return layer, text
