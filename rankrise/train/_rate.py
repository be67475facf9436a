"""The learning rate: a linear warm-up, then a cosine down to its final value."""

import math

from torch import Tensor
from torch.optim import Optimizer


def rate_at(step: int, total: int, warm_up: int, final: float = 0.0) -> float:
    """The learning rate of update number `step`, counted from 0, as a fraction of its largest value.

    `final` is that of update number `total`, which would be the next after the last.

    >>> [round(rate_at(step, total=8, warm_up=4), 3) for step in range(8)]
    [0.25, 0.5, 0.75, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    if step < warm_up:
        return (step + 1) / warm_up
    part = 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(1, total - warm_up)))
    return final + (1 - final) * part


def set_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of the next update; in place where a CUDA graph reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
