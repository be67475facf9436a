"""`rankrise predict`: Algorithm 1 on a built-in network."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from rankrise.commands.network import NetworkSettings


def predict(
    settings: Annotated[Mapping[str, Any], NetworkSettings],
    until: float = 4.0,
    check: bool = False,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Say which coordinate of a diagonal network is learned when, in the limit of a vanishing initialisation.

    Runs the paper's Algorithm 1 on a network with a random teacher, and prints its stages. With --weights
    full, says when each product of full matrices gains a direction, which goes beyond the paper's theorem.

    Args:
        until: rescaled time t / log(1/alpha) at which to stop.
        check: also check the assumptions of Theorem 4.5 at every stage.
        out: folder for stages.json and the picture stages.png and .svg.
        json: print JSON instead of the table.
    """
    from rankrise import predict as theory
    from rankrise.commands.network import build, network_settings
    from rankrise.commands.theory import show_assumptions, tell
    from rankrise.show.progress import bar
    from rankrise.show.stage_table import print_stages
    from rankrise.show.staircase import save_stages

    wanted = network_settings(settings)
    if wanted.weights == "full":
        from rankrise.commands.full_matrices import predict_matrices

        predict_matrices(wanted, until, check, out, json)
        return
    loss = build(wanted)
    with bar("Algorithm 1", loss.size, unit="stages") as move_to:
        stages = theory.greedy(loss, until=until, device=wanted.device, progress=move_to)
    result = stages.to_dict(loss.label)
    if check and len(stages):
        result["assumptions"] = theory.check_assumptions(loss, stages).to_dict()

    def show() -> None:
        print_stages(stages, loss.label)
        show_assumptions(result)

    draw = partial(save_stages, name="stages", stages=stages, label=loss.label)
    tell(result, "stages", out, json, draw, show)
