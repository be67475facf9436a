"""What `rankrise predict` and `rankrise flow` share: the built-in networks, and their stages as a table."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, cast

from rankrise.foundations.errors import RankriseError

if TYPE_CHECKING:
    from rankrise import predict
    from rankrise.predict.types import DiagonalHead, DiagonalLinear, DiagonalTransformer, Objective

NetworkName = Literal["head", "transformer", "linear"]


def build(
    network: NetworkName,
    dimension: int,
    tokens: int,
    samples: int,
    layers: int,
    heads: int,
    objective: str,
    seed: int,
    device: str,
) -> "DiagonalHead | DiagonalTransformer | DiagonalLinear":
    """The network that the flags ask for, with its data and its teacher."""
    import torch

    from rankrise import predict

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise RankriseError(
            f"--device {device} cannot be used here: pass cpu, or cuda where a GPU is"
        ) from error
    kind = cast("Objective", objective)
    if network == "head":
        return predict.diagonal_head(dimension, tokens, samples, seed, kind, device)
    if network == "transformer":
        sizes = (dimension, layers, heads, tokens, samples)
        return predict.diagonal_transformer(*sizes, seed=seed, objective=kind, device=device)
    return predict.diagonal_linear(dimension, samples, seed, objective=kind, device=device)


def print_stages(
    stages: "predict.Stages", label: Callable[[int], str], flow: "predict.Flow | None" = None
) -> None:
    """The stages as a table, beside the flow's times where there is one."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Algorithm 1" if flow is None else "Algorithm 1 and the flow")
    for column in (
        "stage",
        "T_k",
        *(["flow"] if flow is not None else []),
        "coordinate",
        "sign",
        "loss",
        "left",
    ):
        table.add_column(column, justify="left" if column == "coordinate" else "right")
    reached = None if flow is None else flow.activation_times()
    for number, stage in enumerate(stages, start=1):
        times = [f"{stage.time:.4f}"] + (
            [] if reached is None else [f"{float(reached[stage.coordinate]):.4f}"]
        )
        gone = " ".join(label(coordinate) for coordinate in stage.left)
        sign = "+" if stage.sign > 0 else "-"
        table.add_row(str(number), *times, label(stage.coordinate), sign, f"{stage.loss:.5g}", gone)
    console = Console()
    console.print(table)
    console.print(stages.message, highlight=False)
    for number in stages.ties:
        names = ", ".join(label(other) for other in stages[number].tied)
        console.print(
            f"Stage {number + 1} is tied with {names}: the theorem does not cover it.", highlight=False
        )
