"""Labels that say nothing: some drawn at random in place of the true ones, once or anew in every epoch."""

import numpy
import torch
from torch import Tensor

DRAWS = 2**63 + 1
"""Keys the draws, apart from every seed of a run: runs of all seeds have the same wrong labels."""


def noisy(labels: Tensor, classes: int, share: float, epoch: int = 0) -> Tensor:
    """The labels, each replaced with probability `share` by one of the `classes`, all equally likely and the
    true one among them (Zhang et al., 2017). Another `epoch` has other draws.

    >>> noisy(torch.arange(5), 5, share=0.0).tolist()
    [0, 1, 2, 3, 4]
    >>> bool((noisy(torch.zeros(1000), 10, share=0.5) == 0).float().mean().sub(0.55).abs() < 0.05)
    True
    """
    generator = numpy.random.Generator(numpy.random.Philox(key=numpy.array([DRAWS, epoch], numpy.uint64)))
    replaced = torch.from_numpy(generator.random(len(labels)) < share)
    drawn = torch.from_numpy(generator.integers(0, classes, len(labels)))
    return torch.where(replaced, drawn.to(labels.dtype), labels)
