"""`rankrise predict` and `rankrise flow`: stages of a built-in network, in the limit and in the flow."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.show.progress import bar


@dataclass(frozen=True)
class NetworkSettings:
    """A network with its data and a random teacher."""

    network: Literal["head", "transformer", "linear"] = "head"
    """One attention head (Eq. 1), a transformer (Example 3.2), or a linear network."""
    weights: Literal["diagonal", "full"] = "diagonal"
    """Diagonal, as in the paper's theorem, or full, beyond it (for the head and the linear network)."""
    dimension: int = 8
    """Embedding dimension d; the paper's toy has 50."""
    tokens: int = 10
    """Tokens per sample."""
    samples: int = 200
    """Training samples; the paper's toy has 1000."""
    layers: int = 2
    """Layers of the transformer."""
    heads: int = 2
    """Heads per layer of the transformer."""
    objective: Objective = "squared"
    """Squared error, or cross-entropy with the teacher's likelihoods or its likeliest class."""
    seed: int = 0
    """Seed of the data and the teacher; seed + 1 draws the initialisation of a flow."""


def predict(
    *,
    settings: Annotated[Mapping[str, Any], NetworkSettings],
    until: float = 4.0,
    check: bool = False,
) -> Iterator[Any]:
    """Say which coordinate of a diagonal network is learned when, in the limit of a vanishing initialisation.

    Runs the paper's Algorithm 1 on a network with a random teacher, and prints its stages. With --weights
    full, says when each product of full matrices gains a direction, which goes beyond the paper's theorem.

    Args:
        until: rescaled time t / log(1/alpha) at which to stop.
        check: also check the theory's assumptions at every stage.
        json: print JSON instead of the table.
    """
    from rankrise.predict import check_assumptions
    from rankrise.show.tables import print_stages

    network = _network(NetworkSettings(**settings))
    stages = _stages(network, until)
    checked = check_assumptions(network, stages) if check and stages else None
    yield stages.to_dict(network.label) | ({} if checked is None else {"assumptions": checked.to_dict()})
    print_stages(stages, network.label)
    if checked is not None:
        print(f"The theory's assumptions. {checked}")


def flow(
    *,
    settings: Annotated[Mapping[str, Any], NetworkSettings],
    log10_alpha: float = -32.0,
    until: float = 4.0,
) -> Iterator[Any]:
    """Train a diagonal network by exact gradient flow from an initialisation of scale alpha, however small.

    Prints when each coordinate becomes active, beside what Algorithm 1 predicts; with --weights full, when
    each product of full matrices gains a direction, beside what is predicted for them.

    Args:
        log10_alpha: the initialisation scale as a power of ten, below 0; -1000 is fine.
        until: rescaled time t / log(1/alpha) at which to stop.
        json: print JSON instead of the table.
    """
    from rankrise.predict import compare, gradient_flow, random_start
    from rankrise.show.tables import print_stages

    wanted = NetworkSettings(**settings)
    network = _network(wanted)
    start = random_start(network, seed=wanted.seed + 1)
    with bar("gradient flow", until, unit="rescaled time") as move_to:
        solved = gradient_flow(network, *start, log10_alpha, until, progress=move_to)
    stages = _stages(network, until)
    compared = compare(stages, solved)
    error = compared.largest_time_error  # nan if no plateau has its middle within the flow
    errors = {"largest_time_error": error, "largest_point_error": compared.largest_point_error}
    yield solved.to_dict() | {"predicted": stages.to_dict(network.label)} | errors
    print_stages(stages, network.label, solved)
    print(f"{solved.message} {solved.gradients} gradients.")
    if math.isnan(error):
        print("No stage has its whole plateau within this flow: raise --until.")
    else:
        print(f"Largest error of a stage time: {100 * error:.2f} %.")


def _network(settings: NetworkSettings) -> Any:
    from rankrise import predict

    size, full = settings.dimension, settings.weights == "full"
    data: Any = {name: getattr(settings, name) for name in ("samples", "seed", "objective")}
    if settings.network == "linear":
        return predict.linear_network(size, diagonal=not full, **data)
    if settings.network == "head":
        return (predict.full_head if full else predict.diagonal_head)(size, settings.tokens, **data)
    if full:
        raise RankriseError("The transformer has no full weights here: pass --network head or linear.")
    return predict.diagonal_transformer(size, settings.layers, settings.heads, settings.tokens, **data)


def _stages(network: Any, until: float) -> Any:
    from rankrise.predict import greedy

    most = network.size if hasattr(network, "size") else sum(map(min, network.shapes))
    with bar("stages", most, unit="stages") as move_to:
        return greedy(network, until=until, progress=move_to)
