"""Algorithm 1's stages as a table on the terminal, beside the flow's times where there is a flow."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rankrise.predict import Flow, MatrixStages, Stages

if TYPE_CHECKING:
    from rich.console import Console

WORDS = ("coordinate", "left", "product", "lost")
"""Columns of words, which begin at the left; the others hold numbers."""

MEANINGS = {
    "T_k": "the rescaled time t / log(1/alpha) at which the coordinate of stage k becomes active.",
    "flow": "the rescaled time at which |a| of that coordinate rises above 1e-3 in the flow.",
    "loss": "on the plateau that follows.",
    "left": "coordinates that fall back to zero in the stage.",
}


def print_stages(stages: Stages, label: Callable[[int], str], flow: Flow | None = None) -> None:
    """Print one line per stage, what the columns mean, and why there are no more stages."""
    title = "Algorithm 1" if flow is None else "Algorithm 1 and the flow"
    console = print_columns(title, _columns(stages, label, flow), MEANINGS, stages)
    for number in stages.ties:
        names = ", ".join(label(other) for other in stages[number].tied)
        console.print(f"Stage {number + 1} is tied with {names}: the theorem does not cover it.")


def print_columns(
    title: str,
    columns: Mapping[str, Sequence[str]],
    meanings: Mapping[str, str],
    stages: Stages | MatrixStages,
) -> "Console":
    """Print stages line by line, what those columns mean that are not empty, and why there are no more; give
    the console for what is to be said after that."""
    from rich import box

    from rankrise.show.console import safe_console
    from rankrise.show.table import Fitting, table_of

    console = safe_console(highlight=False, soft_wrap=True)
    if len(stages):
        table = table_of(columns, left=WORDS, title=title, box=box.SIMPLE_HEAD)
        console.print(Fitting(table))
        for column in table.columns:
            if column.header in meanings:
                console.print(f"{column.header}: {meanings[str(column.header)]}")
    more = " Raise --until to see it." if stages.ending == "until" else ""
    console.print(f"{'The end' if len(stages) else 'No stage'}: {stages.message}{more}")
    return console


def _columns(stages: Stages, label: Callable[[int], str], flow: Flow | None) -> dict[str, list[str]]:
    """The cells of each column."""
    columns = {
        "stage": [str(number) for number in range(1, len(stages) + 1)],
        "T_k": [f"{stage.time:.4f}" for stage in stages],
    }
    if flow is not None:
        rises = flow.rises()
        columns["flow"] = [nearest(rises.get(stage.coordinate, ()), stage.time) for stage in stages]
    columns["coordinate"] = [label(stage.coordinate) for stage in stages]
    columns["sign"] = ["+" if stage.sign > 0 else "-" for stage in stages]
    columns["loss"] = [f"{stage.loss:.5g}" for stage in stages]
    columns["left"] = [" ".join(label(coordinate) for coordinate in stage.left) for stage in stages]
    return columns


def nearest(rises: Iterable[float], time: float) -> str:
    """When the flow comes to a stage: of what leaves and comes back, the rise nearest to the stage's time."""
    return f"{min(rises, key=lambda rise: abs(rise - time), default=math.inf):.4f}"
