"""Built-in networks for `rankrise predict` and `rankrise flow`, and the output of both."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.foundations.settings import check, replaced, setting

if TYPE_CHECKING:
    from rankrise.predict import Stages
    from rankrise.predict.types import Flow

MOST_GIGABYTES = 2.0


@dataclass(frozen=True)
class NetworkSettings:
    """A network with its data and a random teacher."""

    network: Literal["head", "transformer", "linear"] = "head"
    """One attention head (Eq. 1), a transformer (Example 3.2), or a linear network."""
    weights: Literal["diagonal", "full"] = "diagonal"
    """Diagonal, as in the paper's theorem, or full, beyond it (for the head and the linear network)."""
    columns: int = setting(0, at_least=0)
    """Inner dimension of full matrices, which bounds their rank; 0 for the dimension."""
    dimension: int = setting(8, at_least=1)
    """Embedding dimension d; the paper's toy has 50."""
    tokens: int = setting(10, at_least=1)
    """Tokens per sample."""
    samples: int = setting(200, at_least=1)
    """Training samples; the paper's toy has 1000."""
    layers: int = setting(2, at_least=1)
    """Layers of the transformer."""
    heads: int = setting(2, at_least=1)
    """Heads per layer of the transformer."""
    objective: Objective = "squared"
    """Squared error, or cross-entropy with the teacher's likelihoods or its likeliest class."""
    seed: int = setting(0, at_least=0)
    """Seed of the data and the teacher; seed + 1 draws the initialisation of a flow."""
    device: str = setting("cpu", kind="machine")
    """The device that computes, cpu or cuda."""

    def __post_init__(self) -> None:
        check(self)
        if self.weights == "full" and (
            self.network == "transformer" or (self.network == "linear" and self.objective != "squared")
        ):
            raise RankriseError(
                f"--network {self.network} with --objective {self.objective} has no full weights here: pass "
                "--network head, or --network linear with --objective squared."
            )
        blocks = {"head": 2, "linear": 1, "transformer": 2 * self.layers * self.heads}[self.network]
        solver = 300 * self.dimension**2 if self.weights == "full" else 3 * (blocks * self.dimension) ** 2
        tokens = 1 if self.network == "linear" else self.tokens
        gigabytes = 8e-9 * (10 * self.samples * tokens * self.dimension + solver)
        if gigabytes > MOST_GIGABYTES:
            raise RankriseError(
                f"dimension {self.dimension}, tokens {self.tokens} and samples {self.samples} take about "
                f"{gigabytes:.1f} GB: pass smaller ones, for at most {MOST_GIGABYTES:g} GB."
            )


def network_of(given: Mapping[str, Any]) -> tuple[NetworkSettings, Any]:
    """The settings with those of the command line, and the network that they describe."""
    from rankrise import predict
    from rankrise.foundations.device import usable

    settings = replaced(NetworkSettings(), given, "the command line", "a network")
    full, size = settings.weights == "full", settings.dimension
    sizes: dict[str, Any] = {name: getattr(settings, name) for name in ("samples", "seed", "objective")}
    sizes["device"] = usable(settings.device)
    if settings.network == "linear":
        return settings, predict.linear_network(size, diagonal=not full, **sizes)
    sizes["tokens"] = settings.tokens
    if settings.network == "transformer":
        return settings, predict.diagonal_transformer(size, settings.layers, settings.heads, **sizes)
    return settings, (predict.full_head if full else predict.diagonal_head)(size, **sizes)


def stages_of(settings: NetworkSettings, network: Any, until: float) -> "Stages":
    """The network's stages, with a progress bar."""
    from rankrise import predict
    from rankrise.show.progress import bar

    most = network.size if hasattr(network, "size") else sum(map(min, network.shapes))
    with bar("stages", most, unit="stages") as move_to:
        return predict.greedy(
            network, columns=settings.columns or None, until=until, device=settings.device, progress=move_to
        )


def tell(
    result: Mapping[str, Any],
    name: str,
    out: Path | None,
    json: bool,
    stages: "Stages",
    label: Callable[[int], str],
    flow: "Flow | None" = None,
) -> None:
    """Write a result and its picture to `out` if given; print it as JSON, or its stages as a table."""
    from rankrise.foundations.files import to_json, write_json
    from rankrise.show.stages import print_stages, save_stages

    paths = []
    if out is not None:
        paths = [out / f"{name}.json"]
        write_json(paths[0], result)
        paths += save_stages(out, name, stages, label, flow)
    if json:
        print(to_json(result))
        return
    print_stages(stages, label, flow)
    for assumption in result.get("assumptions", {}).values():
        verdict = "holds" if assumption["holds"] else "does not hold"
        print(f"{assumption['name']}: {verdict}; {assumption['meaning']}: {assumption['margin']:.3g}")
    if flow is not None:
        print(f"{flow.message} {flow.gradients} gradients.")
        error = result["largest_time_error"]
        late = "No plateau has its middle within the flow: raise --until to compare stage times."
        print(late if error != error else f"Largest error of a stage time: {100 * error:.2f} %.")
    for path in paths:
        print(path)
