"""The built-in network that the flags of `rankrise predict` and `rankrise flow` ask for."""

from typing import TYPE_CHECKING, Literal, cast

from rankrise.foundations.errors import RankriseError

if TYPE_CHECKING:
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
            f"--device {device} cannot be used here: pass cpu, or cuda where there is a GPU."
        ) from error
    kind = cast("Objective", objective)
    if network == "head":
        return predict.diagonal_head(dimension, tokens, samples, seed, kind, device)
    if network == "transformer":
        sizes = (dimension, layers, heads, tokens, samples)
        return predict.diagonal_transformer(*sizes, seed=seed, objective=kind, device=device)
    return predict.diagonal_linear(dimension, samples, seed, objective=kind, device=device)
