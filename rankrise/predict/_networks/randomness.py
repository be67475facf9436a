"""Random numbers drawn on the CPU, so that a seed means the same on every device."""

import torch
from torch import Tensor

from rankrise.foundations.passed import typed
from rankrise.predict._networks.checks import check_sizes


@typed
def random_initialisation(
    size: int, seed: int = 1, device: str | torch.device = "cpu"
) -> tuple[Tensor, Tensor]:
    """Gaussian `u0` and `v0` (size,): the direction from which a flow starts, before the scale alpha.

    The seed should not be the network's, from which the numbers of its data were drawn: `rankrise flow` takes
    the next one, and so do the defaults here.

    >>> u0, v0 = random_initialisation(4)
    >>> u0.shape, v0.dtype
    (torch.Size([4]), torch.float64)
    """
    check_sizes(size=size)
    source = generator(seed)
    return gaussian(source, size).to(device), gaussian(source, size).to(device)


def generator(seed: int) -> torch.Generator:
    """A source of random numbers on the CPU."""
    return torch.Generator().manual_seed(seed)


def gaussian(source: torch.Generator, *shape: int) -> Tensor:
    """Standard Gaussian numbers in float64."""
    return torch.randn(*shape, generator=source, dtype=torch.float64)
