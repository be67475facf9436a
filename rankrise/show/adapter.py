"""An adapter in the terminal: what it holds, ranks by kind of matrix, and what was measured."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.files import to_json
from rankrise.show.console import safe_console
from rankrise.show.table import Fitting, table_of

if TYPE_CHECKING:
    from rankrise.use import Adapter

NAMES_SHOWN = 6

MUCH = 0.1
"""Warn if more than this share of the change is left out."""


def print_adapter(
    adapter: "Adapter", place: Path, budget: Mapping[str, Any], measured_on: str, json: bool, what: str
) -> None:
    """Print an adapter that was written to `place`; `what` was cut, a change or an adapter."""
    numbers, rank = adapter.to_dict(), budget.get("rank")
    if (measured := adapter.measured) is not None and measured.no_gain is not None:
        print(f"Warning: {measured.no_gain}", file=sys.stderr)
    if json:
        parameters = None if rank is None else adapter.parameters_at(rank)
        asked = {
            "adapter": str(place),
            "rank": rank,
            "budget": parameters,
            "measured_on": measured_on or None,
        }
        print(to_json({**asked, **numbers}))
        return
    console = safe_console()
    console.print(_table(adapter))
    for line in described(adapter, numbers, rank, what, measured_on):
        console.print(line, markup=False, highlight=False)
    console.print(f"Written: {place}", markup=False, soft_wrap=True)
    console.print(
        f"Load it: peft.PeftModel.from_pretrained(base_model, {str(place)!r})", markup=False, soft_wrap=True
    )


def described(
    adapter: "Adapter", numbers: Mapping[str, Any], rank: int | None, what: str, measured_on: str
) -> Iterator[str]:
    """A line per fact."""
    whole = "everything that training changed" if what == "change" else "the larger adapter"
    yield f"It holds {adapter.held:.1%} of {whole} (the square of the change of all parameters)."
    left_out = sum(adapter.holds.left_out.values())
    if left_out:
        shares: dict[str, float] = {}
        for name, share in adapter.holds.left_out.items():
            kind = _kind(name)
            shares[kind] = shares.get(kind, 0.0) + share
        warning = "Warning: left out" if left_out > MUCH else "Left out"
        yield f"{warning} is {left_out:.1%} of it: {_some([f'{k} {v:.1%}' for k, v in shares.items()])}."
    of = "square weighted by what it does to the loss" if adapter.weighted else "energy (its plain square)"
    yield (
        f"Of the matrices that were cut, {adapter.kept:.1%} of the {of} is kept, beyond rounding noise: "
        f"{adapter.parameters:,} parameters, rank {numbers['largest_rank']} at most."
    )
    if rank is not None:
        yield from _of_the_budget(adapter, rank, what)
    if adapter.rest.changed:
        names = _some(list(dict.fromkeys(map(_kind, adapter.rest.changed))))
        hint = "; --leave_rest leaves them out" if what == "change" else ""
        kept = f"kept whole ({adapter.rest.parameters:,} parameters{hint}; vLLM refuses them)"
        yield f"Not cut: {names}, {kept if adapter.rest.kept else 'left out'}."
    if (measured := adapter.measured) is not None:
        losses = ", ".join(f"{name} {scores['loss']:.4g}" for name, scores in vars(measured).items())
        gain = "there is no gain" if measured.gain is None else f"{measured.gain:.1%} of the gain kept"
        yield f"Loss{measured_on and f' on {measured_on}'}: {losses}; {gain}."


def _table(adapter: "Adapter") -> Fitting:
    """A line per kind of matrix: those whose names differ in numbers alone."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for row in adapter.to_dict()["matrices"]:
        kinds.setdefault(_kind(row["name"]), []).append(row)
    columns: dict[str, list[str]] = {
        title: [] for title in ("matrix", "number", "shape", "rank", "kept", "noise")
    }
    for kind, rows in kinds.items():
        ranks = sorted({row["rank"] for row in rows})
        square = sum(row["square"] for row in rows)
        kept = sum(row["kept"] * row["square"] for row in rows) / square if square else 1.0
        columns["matrix"].append(kind)
        columns["number"].append(str(len(rows)))
        columns["shape"].append("x".join(map(str, rows[0]["shape"])))
        columns["rank"].append(f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0]))
        columns["kept"].append(f"{kept:.1%}")
        columns["noise"].append(f"{max(row['noise'] for row in rows):.1e}")
    table = table_of(columns, left=("matrix",), box=None, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.no_wrap = True
    return Fitting(table)


def _of_the_budget(adapter: "Adapter", rank: int, what: str) -> Iterator[str]:
    """Why not every matrix has the rank that was asked for."""
    ranks = list(adapter.ranks.values())
    most = max(len(spectrum.squares) for spectrum in adapter.spectra.values())
    if max(ranks) > rank:
        yield (
            f"Rank {rank} is a budget of {adapter.parameters_at(rank):,} parameters, spent where it keeps "
            f"most: ranks are {min(ranks)} to {max(ranks)}; --uniform gives every matrix the same rank."
        )
    elif most < rank:
        yield f"The {what} has no more than rank {most} beyond noise, so rank {rank} cuts nothing of it."
    elif min(ranks) < rank:
        yield f"Matrices below rank {rank} have no more directions beyond noise."


def _kind(name: str) -> str:
    return re.sub(r"\d+", "*", name)


def _some(names: list[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
