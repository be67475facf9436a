"""Predicted stages as a table on the terminal, with a flow beside them."""

from collections.abc import Callable

from rich.console import Console

from rankrise.predict import Flow, Stages
from rankrise.show.console import plain_table

MEANINGS = {
    "T_k": "the rescaled time t / log(1/alpha) at which stage k begins, as predicted.",
    "flow": "the rescaled time at which it does so in the flow, at a size of 1e-3.",
    "rank": "of that product from then on.",
    "gap": "how much later another would have been next; times log(1/alpha) it should be far above 1.",
    "loss": "on the plateau that follows.",
    "left": "what falls back to zero in the stage.",
}


def print_stages(stages: Stages, label: Callable[[int], str], flow: Flow | None = None) -> None:
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
