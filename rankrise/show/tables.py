"""Tables as commands print them: predicted stages, functional ranks, an adapter."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, RenderableType
from rich.table import Table

if TYPE_CHECKING:
    from rankrise.predict import Flow, Stages
    from rankrise.use import Adapter
    from rankrise.use.types import Truncation

MEANINGS = {
    "T_k": "the rescaled time t / log(1/alpha) at which stage k begins, as predicted.",
    "flow": "the rescaled time at which it does so in the flow, at a size of 1e-3.",
    "rank": "of that product from then on.",
    "gap": "how much later another would have been next; times log(1/alpha) it should be far above 1.",
    "loss": "on the plateau that follows.",
    "left": "what falls back to zero in the stage.",
}
NAMES_SHOWN = 4
LEAST = 5e-4  # a smaller share of the change is not shown
LITTLE = 0.9  # of the change: warn if an adapter holds less


def plain_table(
    titles: Sequence[str],
    rows: Sequence[Sequence[RenderableType]],
    left: Sequence[str] = (),
    title: str = "",
    gap: int = 1,
) -> Table:
    """A table without lines and without empty columns; columns named in `left` are left-justified."""
    table = Table(title=title or None, box=None, padding=(0, gap, 0, 0), title_justify="left")
    shown = [place for place in range(len(titles)) if any(row[place] for row in rows)]
    for place in shown:
        justify = "left" if titles[place] in left else "right"
        table.add_column(titles[place], justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table


def print_stages(stages: "Stages", label: Callable[[int], str], flow: "Flow | None" = None) -> None:
    """Print one line per stage, what the columns mean, and why there are no more stages."""
    console = Console(highlight=False, soft_wrap=True)
    columns = stages.table(label)
    if flow is not None:
        first = {name: columns.pop(name) for name in ("stage", "T_k") if name in columns}
        columns = first | {"flow": [f"{time:.4f}" for time in flow.times_of(stages)]} | columns
    if stages:
        title = "Algorithm 1" if stages.diagonal else "Stages of full weight matrices"
        title += " and the flow" if flow is not None else ""
        rows = list(zip(*columns.values(), strict=True))
        console.print(plain_table(list(columns), rows, ("coordinate", "product", "left"), title, gap=2))
        for name, cells in columns.items():
            if name in MEANINGS and any(cells):
                console.print(f"{name}: {MEANINGS[name]}")
    more = " Raise --until to see it." if stages.ending == "until" else ""
    console.print(f"{'The end' if stages else 'No stage'}: {stages.message}{more}")
    for number, stage in enumerate(stages, start=1):
        if stage.tied:
            names = ", ".join(map(label, stage.tied))
            console.print(f"Stage {number} is tied with {names}: the theory does not cover it.")


def print_truncation(found: "Truncation", measured_on: str, gain: float, written: Sequence[Path]) -> None:
    """Print the functional ranks, the scores at each size, and which rank is enough."""
    of_all = [one for one in found.curves if one.group == "all"]
    metrics = {one.metric for one in found.curves if one.metric}  # none in files from before there was one
    functional = {"loss": "functional_rank"} | dict.fromkeys(metrics, "metric_rank")
    rows = []
    for curve in found.curves:
        losses = f"{curve.initial['loss']:.4g}", f"{found.trained['loss']:.4g}"
        shown = ["none" if curve.functional_rank is None else str(curve.functional_rank)]
        if metrics:
            rank = "none" if curve.metric_rank is None else str(curve.metric_rank)
            shown.append(rank if curve.metric else "")
        rows.append((curve.group, curve.method, *losses, *shown, str(curve.full_rank)))
    by = [f"rank by {name}" for name in functional]
    titles = ("group", "method", "initial loss", "trained loss", *by, "full rank")
    console = Console()
    console.print(plain_table(titles, rows, ("group", "method"), "Functional rank"))
    sizes = []
    for curve in of_all:
        for one in curve.points:
            scores = [f"{one.scores[name]:.4g}" for name in functional]
            sizes.append((curve.method, str(one.rank), f"{one.parameters:,}", *scores))
    if sizes:
        titles = ("method", "rank", "parameters", *functional)
        console.print(plain_table(titles, sizes, ("method",), "All matrices at each size"))
    note = (
        f"The loss is that of {measured_on}. One group is cut at a time and the rest stays tuned, so the "
        f"initial loss differs from group to group; that of the whole base is {found.base['loss']:.4g}. "
        "A functional rank says little where the two losses hardly differ."
    )
    ways = {
        "plain": "rank {} for every matrix",
        "weighted": "the parameters of rank {}, spent where they matter",
    }
    if metrics and "validation_loss" in found.trained:
        note += f" The {', '.join(metrics)} is that of the validation set."
    for name, attribute in functional.items():
        by_method = {one.method: getattr(one, attribute) for one in of_all}
        enough = [ways[method].format(rank) for method, rank in by_method.items() if rank is not None]
        if enough:
            note += f"\nEnough to keep {100 * gain:g} % of the gain in {name}: {', or '.join(enough)}."
    console.print(note, markup=False, highlight=False)
    if written:
        console.print(f"Written: {', '.join(map(str, written))}", markup=False, soft_wrap=True)


def print_adapter(adapter: "Adapter", numbers: Mapping[str, Any], place: Path, what: str) -> None:
    """Print an adapter that was cut from `what`, a change or an adapter, and written to `place`."""
    console = Console()
    whole = "everything that training changed" if what == "change" else "the larger adapter"
    share = f"{adapter.held:.1%} of {whole}"
    start = "Warning: the" if adapter.held < LITTLE else "The"
    console.print(f"{start} adapter holds {share}, by the square of all parameters' change.")
    console.print(_table(numbers["matrices"]))
    for line in _described(adapter, numbers, what):
        console.print(line, markup=False, highlight=False)
    console.print(f"Written: {place}\nLoad it: {numbers['load']}", markup=False, soft_wrap=True)


def _described(adapter: "Adapter", numbers: Mapping[str, Any], what: str) -> Iterator[str]:
    """A line per fact."""
    rest, measured = adapter.rest, adapter.measured
    of = "square weighted by what it does to the loss" if adapter.moments else "energy (its plain square)"
    yield (
        f"Within the matrices that were cut, {adapter.kept:.1%} of the {of} is kept, beyond rounding noise: "
        f"{numbers['parameters']:,} parameters, rank {max(adapter.ranks.values())} at most."
    )
    shares: dict[str, float] = defaultdict(float)
    for name, share in adapter.left_out.items():
        shares[_kind(name)] += share
    lost = sorted(((share, kind) for kind, share in shares.items() if share > LEAST), reverse=True)
    if lost:
        yield f"Not held, of the whole change: {_some([f'{kind} ({share:.1%})' for share, kind in lost])}."
    names = _some(list(dict.fromkeys(map(_kind, rest.changed))))
    if rest.changed and rest.kept:
        hint = "; --leave_rest leaves them out" if what == "change" else ""
        yield f"Kept whole: {names} ({rest.parameters:,} parameters{hint})."
        if rest.parameters > numbers["parameters"]:
            whole = rest.parameters + numbers["parameters"]
            yield f"The file has {whole:,} parameters with these, and {numbers['parameters']:,} without."
    elif rest.changed:
        yield f"Left out: {names}."
    if measured is not None:
        scores = {"base": measured.base, "tuned": measured.tuned, "adapter": measured.adapter}
        yield f"On {measured.on}:"
        for name, gain in measured.gains.items():
            losses = ", ".join(f"{which} {one[name]:.4g}" for which, one in scores.items())
            yield f"  {name}: {losses}; {'no gain' if gain is None else f'{gain:.1%} of the gain kept'}"
        if measured.searched is not None:
            reached = f"{measured.searched:.1%} of the gain on its own data"
            yield f"The search kept {reached}; more --examples bring both closer."
    readers = numbers["readers"].items()
    right = ", ".join(name for name, verdict in readers if verdict == "right")
    wrong = ", ".join(f"{name} ({verdict})" for name, verdict in readers if verdict != "right")
    yield f"Applied rightly by {right}" + (f"; not by {wrong}: see --for." if wrong else ".")


def _some(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more


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
