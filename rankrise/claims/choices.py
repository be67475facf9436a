"""What a choice does to the rank of the change: growth, end, and end against the base's."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankrise.claims.growth import growth
from rankrise.claims.heads import at_the_end, of_shared_layers
from rankrise.claims.statistics import Estimate, contrast
from rankrise.runs import Choice, TrackedRun

SAME = Estimate(0.0, 0.0, 0.0)
"""The logarithm of 1."""
LAST = 0.05
"""The part of the steps at the end over which the training loss is a mean."""


@dataclass(frozen=True)
class Effect:
    """Of one product in one layer, counted from 1, or over all layers (None), each weighing alike."""

    product: str
    layer: int | None
    growth: Estimate
    """The factor from the end of the first epoch to the end of training, geometric mean over heads."""
    final: Estimate
    """The stable rank after training, mean over heads."""
    against_base: Estimate
    """That over the base's, geometric mean over heads."""


def effects(choice: Choice, base: Choice) -> list[Effect]:
    """The effects of a choice, those over all layers first for each product.

    Heads are drawn again within layers, and seeds where there are several, as for claims.
    """
    found: list[Effect] = []
    for product in base.runs[0].products:
        factors, _ = growth(choice.runs, product)
        ends, usual = at_the_end(choice.runs, product), at_the_end(base.runs, product)
        both = of_shared_layers([ends.mapped(np.log), usual.mapped(np.log)])
        by_layer, together = contrast(both, (1.0, -1.0))
        if not choice.changes:  # the base against itself, not against another draw of it
            together, by_layer = SAME, dict.fromkeys(by_layer, SAME)
        whole = factors.mean().mapped(np.exp), ends.mean(), together.mapped(np.exp)
        found.append(Effect(product, None, *whole))
        grown, final = factors.by_layer(), ends.by_layer()
        found += [
            Effect(product, layer, grown[layer].mapped(np.exp), final[layer], ratio.mapped(np.exp))
            for layer, ratio in by_layer.items()
            if layer in grown
        ]
    return found


@dataclass(frozen=True)
class Learned:
    """How well runs ended, means over seeds; nan where it was not recorded."""

    loss: float
    """The training loss."""
    validation_loss: float
    accuracy: float

    @property
    def score(self) -> float:
        """What tells which of several learning rates is best: accuracy, else the validation loss."""
        known = [self.accuracy, -self.validation_loss, -self.loss]
        return next((one for one in known if np.isfinite(one)), -np.inf)


def learned(runs: Sequence[TrackedRun]) -> Learned:
    """The training loss, over the last 5 % of the steps, and the last validation loss and accuracy."""
    return Learned(
        _mean(runs, "loss", LAST), _mean(runs, "validation_loss", 0.0), _mean(runs, "accuracy", 0.0)
    )


def _mean(runs: Sequence[TrackedRun], name: str, part: float) -> float:
    """Over runs, the mean of what was recorded in the last part of the steps, and at the last of all."""
    found = []
    for run in runs:
        recorded = run.steps()
        values = recorded.get(name, np.full(len(recorded["step"]), np.nan))
        known = np.isfinite(values)
        steps = recorded["step"][known]
        late = steps >= (1 - part) * steps.max(initial=0.0)
        found.append(float(values[known][late].mean()) if len(steps) else float("nan"))
    return float(np.mean(found))
