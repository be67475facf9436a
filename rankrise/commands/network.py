"""The built-in network that `rankrise predict` and `rankrise flow` compute on."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rankrise.foundations.errors import RankriseError
from rankrise.foundations.objective import Objective
from rankrise.foundations.settings import check, replaced, setting

if TYPE_CHECKING:
    from rankrise.predict.types import DiagonalHead, DiagonalLinear, DiagonalTransformer

MOST_NUMBERS = 2 * 10**8
"""In all samples together: they take 1.6 GB, and the computation several times as much."""


@dataclass(frozen=True)
class NetworkSettings:
    """A network with its data and a random teacher."""

    network: Literal["head", "transformer", "linear"] = "head"
    """One attention head (Eq. 1), a transformer (Example 3.2), or a linear network."""
    weights: Literal["diagonal", "full"] = "diagonal"
    """Diagonal, as in the paper's theorem, or full, beyond it (for the head and the linear network)."""
    columns: int = setting(0, at_least=0, at_most=10**6)
    """Inner dimension of full matrices, which bounds their rank; 0 for the dimension."""
    dimension: int = setting(8, at_least=1, at_most=10**6)
    """Embedding dimension d; the paper's toy has 50."""
    tokens: int = setting(10, at_least=1, at_most=10**6)
    """Tokens per sample."""
    samples: int = setting(200, at_least=1, at_most=10**9)
    """Training samples; the paper's toy has 1000."""
    layers: int = setting(2, at_least=1, at_most=1000)
    """Layers of the transformer."""
    heads: int = setting(2, at_least=1, at_most=10**6)
    """Heads per layer of the transformer."""
    objective: Objective = "squared"
    """Squared error, or cross-entropy with the teacher's likelihoods or its likeliest class."""
    seed: int = setting(0, at_least=0)
    """Seed of the data and the teacher; seed + 1 draws the initialisation of a flow."""
    device: str = setting("cpu", kind="machine")
    """The device that computes, cpu or cuda."""

    def __post_init__(self) -> None:
        check(self)
        numbers = self.samples * self.tokens * self.dimension
        if numbers > MOST_NUMBERS:
            raise RankriseError(
                f"{self.samples} samples of {self.tokens} tokens of dimension {self.dimension} are "
                f"{numbers:.2g} numbers: pass fewer, at most {MOST_NUMBERS:.2g}."
            )


def network_settings(given: Mapping[str, Any]) -> NetworkSettings:
    """The settings with those that the command line gives."""
    return replaced(NetworkSettings(), given, "the command line", "a network")


def build(settings: NetworkSettings) -> "DiagonalHead | DiagonalTransformer | DiagonalLinear":
    """The diagonal network that the settings ask for."""
    from rankrise import predict
    from rankrise.foundations.device import usable

    usable(settings.device)
    sizes = {
        name: getattr(settings, name) for name in ("dimension", "samples", "seed", "objective", "device")
    }
    if settings.network == "head":
        return predict.diagonal_head(tokens=settings.tokens, **sizes)
    if settings.network == "transformer":
        return predict.diagonal_transformer(
            layers=settings.layers, heads=settings.heads, tokens=settings.tokens, **sizes
        )
    return predict.diagonal_linear(**sizes)
