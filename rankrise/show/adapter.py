"""An adapter in the terminal: what it holds, ranks by kind of matrix, and what was measured."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from rankrise.foundations.files import to_json
from rankrise.show.console import plain_table
from rankrise.use import Adapter

NAMES_SHOWN = 4
LITTLE = 0.9  # of the change: warn if an adapter that leaves tensors out holds less


def print_adapter(adapter: Adapter, place: Path, measured_on: str, json: bool, what: str) -> None:
    """Print an adapter that was cut from `what`, a change or an adapter, and written to `place`."""
    numbers = adapter.to_dict()
    if json:
        print(to_json({"adapter": str(place), "measured_on": measured_on or None, **numbers}))
        return
    console = Console()
    whole = "everything that training changed" if what == "change" else "the larger adapter"
    console.print(
        f"The adapter holds {adapter.held:.1%} of {whole}, by the square of all parameters' change."
    )
    console.print(_table(numbers["matrices"]))
    for line in _described(adapter, what, measured_on):
        console.print(line, markup=False, highlight=False)
    load = f"Load it: peft.PeftModel.from_pretrained(base_model, {str(place)!r})"
    console.print(f"Written: {place}\n{load}", markup=False, soft_wrap=True)


def _described(adapter: Adapter, what: str, measured_on: str) -> Iterator[str]:
    """A line per fact."""
    rest, measured = adapter.rest, adapter.measured
    of = "square weighted by what it does to the loss" if adapter.moments else "energy (its plain square)"
    yield (
        f"{adapter.kept:.1%} of the {of} in the cut matrices is kept, beyond rounding noise: "
        f"{adapter.parameters:,} parameters, rank {max(adapter.ranks.values())} at most."
    )
    names = _some(map(_kind, rest.changed))
    if rest.changed and rest.kept:
        hint = "--leave_rest leaves them out; " if what == "change" else ""
        yield f"Kept whole: {names} ({rest.parameters:,} parameters; {hint}vLLM refuses them)."
    elif rest.changed:
        yield f"{'Warning: left out' if adapter.held < LITTLE else 'Left out'}: {names}."
    if measured is not None:
        scores = {"base": measured.base, "tuned": measured.tuned, "adapter": measured.adapter}
        losses = ", ".join(f"{name} {one['loss']:.4g}" for name, one in scores.items())
        gain = (
            "no gain: are BASE and TUNED swapped?"
            if measured.gain is None
            else f"{measured.gain:.1%} of the gain kept."
        )
        yield f"Loss on {measured_on}: {losses}; {gain}"


def _table(matrices: Sequence[Mapping[str, Any]]) -> Table:
    """A line per kind of matrix: those whose names differ in numbers alone."""
    kinds: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for row in matrices:
        kinds[_kind(row["name"])].append(row)
    lines = []
    for kind, rows in kinds.items():
        low, high = min(row["rank"] for row in rows), max(row["rank"] for row in rows)
        square = sum(row["square"] for row in rows)
        kept = sum(row["kept"] * row["square"] for row in rows) / square if square else 1.0
        shape, ranks = "x".join(map(str, rows[0]["shape"])), f"{low}-{high}" if low < high else str(low)
        noise = max(row["noise"] for row in rows)
        lines.append((kind, str(len(rows)), shape, ranks, f"{kept:.1%}", f"{noise:.1e}"))
    return plain_table(("matrix", "number", "shape", "rank", "kept", "noise"), lines, left=("matrix",))


def _kind(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _some(names: Iterable[str]) -> str:
    """The first few different names, and how many more there are."""
    different = list(dict.fromkeys(names))
    more = len(different) - NAMES_SHOWN
    return ", ".join(different[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
