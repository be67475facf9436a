"""An adapter in the terminal: ranks by kind of matrix, what it keeps, and what was measured."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankrise.foundations.counted import and_more
from rankrise.foundations.files import to_json
from rankrise.show.console import safe_console

if TYPE_CHECKING:
    from rankrise.use.types import Adapter

NAMES_SHOWN = 6


def described(
    adapter: "Adapter", rank: int | None, measured_on: str = "", what: str = "change", default: str = ""
) -> Iterator[Any]:
    """A table with a line per kind of matrix, then a line per fact; `rank` is the budget that was asked,
    `what` the thing that was cut, a change or an adapter, and `default` the budget where none was asked."""
    numbers = adapter.to_dict()
    yield _table(numbers["matrices"])
    of = (
        "of the change's square kept, weighted by what it does to the loss"
        if adapter.weighted
        else "of the change's energy (its plain square) kept"
    )
    whole = numbers["rest_parameters"] if numbers["rest_kept"] else 0
    beside = f" of its {numbers['parameters'] + whole:,}" if whole else ""
    yield (
        f"{numbers['parameters']:,}{beside} parameters are low-rank factors, of rank "
        f"{numbers['largest_rank']} at most; "
        f"{100 * numbers['kept']:.1f} % {of}. Singular values up to 'noise' could be rounding."
    )
    if default:
        yield f"No budget is given, so it is {default}: --rank, --parameters, --keep or --gain sets another."
    if rank is not None:
        yield from _of_the_budget(adapter, rank, what)
    if numbers["rest"]:
        hint = "; --leave_rest leaves them out" if what == "change" else ""
        how = f"kept whole ({whole:,} parameters{hint})" if whole else "left out"
        yield f"A low rank cannot hold {_listed(numbers['rest'])}: {how}."
    if adapter.rest.parameters:
        how = "pass" if what == "change" else "extract it with"
        yield f"vLLM refuses adapters with whole modules or biases: for it, {how} --leave_rest and --padded."
    if (measured := numbers["measured"]) is not None:
        losses = ", ".join(f"{name} {measured[name]['loss']:.4g}" for name in ("base", "adapter", "tuned"))
        gain = measured["gain"]
        share = "there is no gain" if gain is None else f"{100 * gain:.1f} % of the gain kept"
        yield f"Loss{measured_on and f' on {measured_on}'}: {losses}; {share}."


def _table(matrices: Sequence[Mapping[str, Any]]) -> Any:
    """A line per kind of matrix: those whose names differ in numbers alone."""
    from rich.table import Table

    from rankrise.show.table import Fitting

    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for row in matrices:
        kinds.setdefault(re.sub(r"\d+", "*", row["name"]), []).append(row)
    table = Table(box=None, padding=(0, 1, 0, 0))
    for title in ("matrix", "number", "shape", "rank", "kept", "noise"):
        table.add_column(title, justify="left" if title == "matrix" else "right", no_wrap=title != "matrix")
    for kind, rows in kinds.items():
        ranks = [row["rank"] for row in rows]
        shape = "x".join(map(str, rows[0]["shape"]))
        span = f"{min(ranks)}-{max(ranks)}" if min(ranks) < max(ranks) else f"{ranks[0]}"
        square = sum(row["square"] for row in rows)
        kept = sum(row["kept"] * row["square"] for row in rows) / square if square else 1.0
        noise = max(row["noise"] for row in rows)
        table.add_row(kind, str(len(rows)), shape, span, f"{kept:.1%}", f"{noise:.1e}")
    return Fitting(table)


def _of_the_budget(adapter: "Adapter", rank: int, what: str) -> Iterator[str]:
    """Why ranks are not all the one that was asked for."""
    ranks = list(adapter.ranks.values())
    most = max(len(cut.spectrum.squares) for cut in adapter.cuts.values())
    if max(ranks) > rank:
        yield (
            f"Rank {rank} is a budget: the {adapter.parameters_at(rank):,} parameters of rank {rank} in "
            f"every matrix. It is spent where it keeps most, on ranks from {min(ranks)} to {max(ranks)}; "
            "--uniform gives every matrix the same rank."
        )
    elif most < rank:
        yield f"The {what} holds no more than rank {most} beyond noise, so rank {rank} cuts nothing of it."
    elif min(ranks) < rank:
        yield f"Matrices below rank {rank} have no more directions that stand out from the noise."


def print_adapter(
    adapter: "Adapter",
    place: Path,
    rank: int | None,
    on: str,
    json: bool,
    what: str = "change",
    default: str = "",
) -> None:
    """Say, or print as JSON, what an adapter is that was written to `place` for the budget of a rank."""
    if json:
        budget = None if rank is None else adapter.parameters_at(rank)
        asked = {"adapter": str(place), "rank": rank, "budget": budget, "measured_on": on or None}
        print(to_json({**asked, **adapter.to_dict()}))
        return
    console = safe_console()
    for line in described(adapter, rank, on, what, default):
        console.print(line, markup=False, highlight=False)
    console.print(f"Written: {place}", markup=False, soft_wrap=True)
    console.print(
        f"Load it: peft.PeftModel.from_pretrained(base_model, {str(place)!r})", markup=False, soft_wrap=True
    )


def _listed(names: list[str]) -> str:
    """Names with their numbers left out, each once."""
    kinds = list(dict.fromkeys(re.sub(r"\d+", "*", name) for name in names))
    return ", ".join(kinds[:NAMES_SHOWN]) + and_more(len(kinds) - NAMES_SHOWN)
