"""`rankrise predict`: Algorithm 1 on a built-in network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from rankrise.commands.theory import NetworkSettings


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
        check: also check the theory's assumptions at every stage.
        out: folder for stages.json and the picture stages.png and .svg.
        json: print JSON instead of the table.
    """
    from rankrise import predict as theory
    from rankrise.commands.theory import network_of, stages_of, tell

    wanted, network = network_of(settings)
    stages = stages_of(wanted, network, until)
    result = stages.to_dict(network.label)
    if check and stages:
        result["assumptions"] = theory.check_assumptions(network, stages).to_dict()
    tell(result, "stages", out, json, stages, network.label)
