"""The learning rate, a linear warm-up and then a cosine, and how much weight decay takes at that rate."""

import math

from torch import Tensor
from torch.optim import Optimizer

from rankrise.recipes.train_settings import TrainSettings

MOST_TERMS = 10_000
"""Steps, evenly spaced, that the decay of a whole run is computed from at most."""


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
    """Set the learning rate of the next update, in place if a CUDA graph reads it."""
    for group in optimiser.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def decayed(settings: TrainSettings, total: int, warm_up: int) -> float:
    """The factor by which decoupled weight decay shrinks a weight over the whole run; 1 for sgd.

    >>> decayed(TrainSettings(weight_decay=0.1, learning_rate=1e-3), total=2, warm_up=2)
    0.99985000...
    """
    if settings.optimiser == "sgd":
        return 1.0
    final, every = settings.final_learning_rate / settings.learning_rate, -(-total // MOST_TERMS)
    strength = settings.learning_rate * settings.weight_decay
    kept = (1 - strength * rate_at(step, total, warm_up, final) for step in range(0, total, every))
    return math.prod(max(0.0, one) for one in kept) ** (total / len(range(0, total, every)))
