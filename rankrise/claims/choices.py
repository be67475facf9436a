"""What single choices do to ranks, beside how well their runs learned."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rankrise.claims.heads import at_the_end, growth, shared_layers
from rankrise.claims.statistics import Estimate, Layers, means
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
        (factors,), ends = means(growth(choice.runs, product), logs=True), at_the_end(choice.runs, product)
        pair = shared_layers([ends, at_the_end(base.runs, product)])
        ours, theirs = means(*(heads.mapped(np.log) for heads in pair))
        # The base is compared with itself, not with another draw of its heads.
        other = theirs if choice.changes else ours
        three = (factors, *means(ends), Layers(ours.numbers, ours.drawn - other.drawn, logs=True))
        found.append(Effect(product, None, *(one.over("mean") for one in three)))
        each = [one.each() for one in three]
        layers = [layer for layer in each[2] if layer in each[0]]
        found += [Effect(product, layer, *(one[layer] for one in each)) for layer in layers]
    return found


def learned(runs: Sequence[TrackedRun]) -> dict[str, float]:
    """Loss over the last 5 % of training, last validation loss and accuracy; nan where not recorded."""

    def last(run: TrackedRun, name: str, part: float) -> float:
        recorded = run.steps()
        values = recorded.get(name, np.full(len(recorded["step"]), np.nan))
        known = np.isfinite(values)
        steps = recorded["step"][known]
        return float(values[known][steps >= (1 - part) * steps[-1]].mean()) if len(steps) else np.nan

    parts = {"loss": 0.05, "validation_loss": 0.0, "accuracy": 0.0}
    return {name: float(np.mean([last(run, name, part) for run in runs])) for name, part in parts.items()}
