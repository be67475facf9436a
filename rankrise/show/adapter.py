"""An adapter in the terminal: what it holds, ranks by kind of matrix, and what was measured."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.files import to_json
from rankrise.show.console import Fitting, safe_console, table_of

if TYPE_CHECKING:
    from rankrise.use import Adapter

NAMES_SHOWN = 4

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
    whole = "everything that training changed" if what == "change" else "the larger adapter"
    console.print(
        f"The adapter holds {adapter.held:.1%} of {whole}, by the square of all parameters' change."
    )
    console.print(_table(numbers["matrices"]))
    for line in described(adapter, rank, what, measured_on):
        console.print(line, markup=False, highlight=False)
    console.print(f"Written: {place}", markup=False, soft_wrap=True)
    console.print(
        f"Load it: peft.PeftModel.from_pretrained(base_model, {str(place)!r})", markup=False, soft_wrap=True
    )


def described(adapter: "Adapter", rank: int | None, what: str, measured_on: str) -> Iterator[str]:
    """A line per fact."""
    of = "square weighted by what it does to the loss" if adapter.moments else "energy (its plain square)"
    yield (
        f"Of the matrices that were cut, {adapter.kept:.1%} of the {of} is kept, beyond rounding noise: "
        f"{adapter.parameters:,} parameters, rank {max(adapter.ranks.values())} at most."
    )
    if rank is not None:
        yield from _of_the_budget(adapter, rank, what)
    if adapter.rest.changed and adapter.rest.kept:
        hint = "--leave_rest leaves them out; " if what == "change" else ""
        yield (
            f"Kept whole: {_some(map(_kind, adapter.rest.changed))} ({adapter.rest.parameters:,} parameters; "
            f"{hint}vLLM refuses them)."
        )
    elif adapter.rest.changed:
        left_out, shares = 0.0, dict.fromkeys(map(_kind, adapter.holds.left_out), 0.0)
        for name in adapter.rest.changed:  # those that are new have no share
            share = adapter.holds.left_out.get(name, 0.0)
            shares[_kind(name)] = shares.get(_kind(name), 0.0) + share
            left_out += share
        names = _some(f"{kind} {share:.1%}" if share > 5e-4 else kind for kind, share in shares.items())
        warning = "Warning: left out" if left_out > MUCH else "Left out"
        yield f"{warning}, {left_out:.1%} of the change: {names}."
    if (measured := adapter.measured) is not None:
        losses = ", ".join(f"{name} {scores['loss']:.4g}" for name, scores in vars(measured).items())
        gain = "there is no gain" if measured.gain is None else f"{measured.gain:.1%} of the gain kept"
        yield f"Loss{measured_on and f' on {measured_on}'}: {losses}; {gain}."


def _table(matrices: Sequence[Mapping[str, Any]]) -> Fitting:
    """A line per kind of matrix: those whose names differ in numbers alone."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in matrices:
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


def _some(names: Iterable[str]) -> str:
    """The first few different names, and how many more there are."""
    different = list(dict.fromkeys(names))
    more = len(different) - NAMES_SHOWN
    return ", ".join(different[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
