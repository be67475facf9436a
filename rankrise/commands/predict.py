"""`rankrise predict`: Algorithm 1 on a built-in network."""

from pathlib import Path
from typing import Literal


def predict(
    network: Literal["head", "transformer", "linear"] = "head",
    dimension: int = 8,
    tokens: int = 10,
    samples: int = 200,
    layers: int = 2,
    heads: int = 2,
    objective: Literal["squared", "cross-entropy", "hard-cross-entropy"] = "squared",
    seed: int = 0,
    until: float = 4.0,
    check: bool = False,
    out: Path | None = None,
    device: str = "cpu",
    json: bool = False,
) -> None:
    """Say which coordinate of a diagonal network is learned when, in the limit of a vanishing initialisation.

    Runs the paper's Algorithm 1 on a network with a random teacher, and prints its stages.

    Args:
        network: one attention head (Eq. 1), a transformer (Example 3.2), or a linear network.
        dimension: embedding dimension d; the paper's toy has 50.
        tokens: tokens per sample.
        samples: training samples; the paper's toy has 1000.
        layers: layers of the transformer.
        heads: heads per layer of the transformer.
        objective: squared error, or cross-entropy with the teacher's likelihoods or its likeliest class.
        seed: draws the data and the teacher.
        until: rescaled time t / log(1/alpha) at which to stop.
        check: also check the assumptions of Theorem 4.5 at every stage.
        out: folder for stages.json and the picture stages.png and .svg.
        device: cpu or cuda.
        json: print JSON instead of the table.
    """
    from rankrise import predict as theory
    from rankrise.commands.network import build
    from rankrise.foundations.files import to_json, write_json
    from rankrise.show.progress import bar
    from rankrise.show.stage_table import print_stages
    from rankrise.show.staircase import save_stages

    loss = build(network, dimension, tokens, samples, layers, heads, objective, seed, device)
    with bar("Algorithm 1", loss.size, unit="stages") as move_to:
        stages = theory.greedy(loss, until=until, device=device, progress=move_to)
    result = stages.to_dict(loss.label)
    if check and len(stages):
        result["assumptions"] = theory.check_assumptions(loss, stages).to_dict()
    paths = []
    if out is not None:
        write_json(out / "stages.json", result)
        paths = [out / "stages.json", *save_stages(out, stages, loss.label)]
    if json:
        print(to_json(result))
        return
    print_stages(stages, loss.label)
    for assumption in result.get("assumptions", {}).values():
        verdict = "holds" if assumption["holds"] else "does not hold"
        print(f"{assumption['name']}: {verdict}; {assumption['meaning']}: {assumption['margin']:.3g}")
    for path in paths:
        print(path)
