"""`rankrise flow`: the exact gradient flow of a built-in network, beside Algorithm 1."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rankrise.commands.network import NetworkSettings


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
    from rankrise.commands.network import build, network_settings
    from rankrise.commands.theory import show_agreement, tell
    from rankrise.show.progress import bar
    from rankrise.show.stage_table import print_stages
    from rankrise.show.staircase import save_stages

    wanted = network_settings(settings)
    if wanted.weights == "full":
        from rankrise.commands.full_matrices import flow_matrices

        flow_matrices(wanted, log10_alpha, until, tolerance, out, json)
        return
    loss = build(wanted)
    u0, v0 = theory.random_initialisation(loss.size, wanted.seed + 1, wanted.device)
    with bar("gradient flow", until, unit="rescaled time") as move_to:
        solved = theory.gradient_flow(loss, u0, v0, log10_alpha, until, tolerance, progress=move_to)
    stages = theory.greedy(loss, until=until, device=wanted.device)
    comparison = theory.compare(stages, solved)
    result = {
        **solved.to_dict(),
        "algorithm_1": stages.to_dict(loss.label),
        "largest_time_error": comparison.largest_time_error,
        "largest_point_error": comparison.largest_point_error,
        "support_grows_by_at_most_one": comparison.support_grows_by_at_most_one,
    }

    def show() -> None:
        print_stages(stages, loss.label, solved)
        show_agreement(solved, len(solved.times) - 1, comparison)

    draw = partial(save_stages, name="flow", stages=stages, label=loss.label, flow=solved)
    tell(result, "flow", out, json, draw, show)
