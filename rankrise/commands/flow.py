"""`rankrise flow`: the gradient flow of a built-in network, beside its predicted stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.commands.theory import NetworkSettings


def flow(
    settings: Annotated[Mapping[str, Any], NetworkSettings],
    log10_alpha: float = -32.0,
    until: float = 4.0,
    tolerance: float = 1e-5,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Train a diagonal network by exact gradient flow from an initialisation of scale alpha, however small.

    Prints when each coordinate becomes active, beside what Algorithm 1 predicts; with --weights full, when
    each product of full matrices gains a direction, beside what is predicted for them.

    Args:
        log10_alpha: the initialisation scale as a power of ten, below 0; -1000 is fine.
        until: rescaled time t / log(1/alpha) at which to stop.
        tolerance: error allowed per step, in log|a| / log(1/alpha).
        out: folder for flow.json and the picture flow.png and .svg.
        json: print JSON instead of the table.
    """
    from rankrise import predict as theory
    from rankrise.commands.theory import network_of, stages_of, tell
    from rankrise.show.progress import bar

    wanted, network = network_of(settings)
    start = theory.random_start(network, wanted.columns or None, wanted.seed + 1, wanted.device)
    with bar("gradient flow", until, unit="rescaled time") as move_to:
        solved = theory.gradient_flow(network, *start, log10_alpha, until, tolerance, progress=move_to)
    stages = stages_of(wanted, network, until)
    comparison = theory.compare(stages, solved)
    errors = ("largest_time_error", "largest_point_error")
    result = solved.to_dict() | {"predicted": stages.to_dict(network.label)}
    result |= {name: getattr(comparison, name) for name in errors}
    tell(result, "flow", out, json, stages, network.label, solved)
