"""The network, data and initialisation that a seed stands for."""

from torch import Tensor

from rankrise import predict
from rankrise.predict.types import DiagonalHead, DiagonalTransformer
from rankrise.recipes.toy_settings import ToySettings

Network = DiagonalHead | DiagonalTransformer


def network_of(settings: ToySettings, seed: int) -> Network:
    """The diagonal network on its data: the head of Eq. 1, or a transformer for more layers or heads."""
    sizes = (settings.dimension, settings.tokens, settings.samples)
    if settings.layers == settings.heads == 1:
        return predict.diagonal_head(*sizes, seed=seed, objective=settings.objective)
    dimension, tokens, samples = sizes
    return predict.diagonal_transformer(
        dimension, settings.layers, settings.heads, tokens, samples, seed=seed, objective=settings.objective
    )


def initialisation_of(settings: ToySettings, seed: int) -> tuple[Tensor, Tensor]:
    """Gaussian `u0` and `v0` (p,), the same for every scale: theta(0) = alpha * theta_0."""
    size = 2 * settings.dimension * settings.layers * settings.heads
    # Not the seed of the data: the teacher would be drawn from the same numbers.
    return predict.random_start(size, seed=seed + 1_000_000)
