"""What single choices, such as another optimiser, do to the rank of the change, and how well they train."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankrise.claims.heads import at_the_end, growth, shared_layers
from rankrise.claims.statistics import Estimate, contrast
from rankrise.runs import Choice, TrackedRun


@dataclass(frozen=True)
class Effect:
    """What a choice does to the rank of a product's change, in one layer or over all (None)."""

    product: str
    layer: int | None
    growth: Estimate
    """The factor from the end of the first epoch to the end of training, geometric mean over heads."""
    final: Estimate
    """The stable rank after training, mean over heads."""
    against_base: Estimate
    """The ratio of that to the base's, geometric mean over heads."""


def effects(choice: Choice, base: Choice) -> list[Effect]:
    """The effects of a choice on each product, first over all layers, then by layer."""
    found: list[Effect] = []
    for product in base.runs[0].products:
        factors, ends = growth(choice.runs, product), at_the_end(choice.runs, product)
        pair = shared_layers([ends.mapped(np.log), at_the_end(base.runs, product).mapped(np.log)])
        ratios, ratio = contrast(pair, (1.0, -1.0))
        if not choice.changes:  # the base against itself, not against another draw of its heads
            ratio = Estimate(0.0, 0.0, 0.0)
            ratios = dict.fromkeys(ratios, ratio)
        whole = Effect(
            product,
            None,
            factors.over_layers("mean").mapped(np.exp),
            ends.over_layers("mean"),
            ratio.mapped(np.exp),
        )
        grown, final = factors.by_layer(), ends.by_layer()
        found += [whole] + [
            Effect(product, layer, grown[layer].mapped(np.exp), final[layer], one.mapped(np.exp))
            for layer, one in ratios.items()
            if layer in grown
        ]
    return found


@dataclass(frozen=True)
class Learned:
    """How well runs ended, means over seeds; nan if it was not recorded."""

    loss: float
    """The training loss over the last 5 % of the steps."""
    validation_loss: float
    accuracy: float

    @property
    def score(self) -> float:
        """The number by which learning rates are compared: accuracy, else the validation loss."""
        known = [self.accuracy, -self.validation_loss, -self.loss]
        return next((one for one in known if np.isfinite(one)), -np.inf)


def learned(runs: Sequence[TrackedRun]) -> Learned:
    """The final training loss, validation loss and accuracy."""

    def mean(name: str, last_part: float) -> float:
        found = []
        for run in runs:
            recorded = run.steps()
            values = recorded.get(name, np.full(len(recorded["step"]), np.nan))
            known = np.isfinite(values)
            steps = recorded["step"][known]
            late = steps >= (1 - last_part) * steps.max(initial=0.0)
            found.append(float(values[known][late].mean()) if len(steps) else float("nan"))
        return float(np.mean(found))

    return Learned(mean("loss", 0.05), mean("validation_loss", 0.0), mean("accuracy", 0.0))
