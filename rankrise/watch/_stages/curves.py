"""The curves of a tracked run in which stages are looked for."""

from dataclasses import dataclass

import numpy as np

from rankrise.record.run import TrackedRun
from rankrise.watch._stages.steps import Direction, Scale


@dataclass(frozen=True, eq=False)
class Curve:
    """Values (n,) at training steps (n,) that may step up or down."""

    name: str
    steps: np.ndarray
    values: np.ndarray
    direction: Direction = "up"
    scale: Scale = "log"
    alone: bool = True
    """Whether a step of this curve makes a stage without another's."""


def curves_of(run: TrackedRun) -> list[Curve]:
    """The loss; for every layer and product the median stable rank of its heads and the total of their
    leading singular values; for every product the stable rank of all heads together, where there are several
    layers. Steps at which the change of most heads is rounding noise are left out.
    """
    recorded, curves = run.steps(), []
    if "loss" in recorded:
        curves.append(Curve("loss", recorded["step"], recorded["loss"], direction="down"))
    for product in run.products:
        ranks, noisy = run.stable_rank(product), run.below_noise(product)
        values = np.nansum(run.top(product), axis=(2, 3))
        for place, layer in enumerate(run.layers):
            name, heads = f"{layer['name']} {product}", ranks[:, place]
            clear = ~_mostly(noisy[:, place], heads)
            heads = heads[:, ~np.isnan(heads).all(0)]
            median = np.median(heads, axis=1) if heads.size else np.zeros(len(heads))
            steps, total = run.measured[clear], values[clear, place]
            curves += [
                Curve(f"{name} stable rank", steps, median[clear], alone=False),
                Curve(f"{name} singular values", steps, total, scale="linear", alone=False),
            ]
        if len(run.layers) > 1:  # of one layer, it would only repeat that layer's curve
            clear = ~_mostly(noisy, ranks)
            total = np.nansum(ranks, axis=(1, 2))[clear]
            curves.append(Curve(f"all {product} stable rank", run.measured[clear], total, alone=False))
    return curves


def _mostly(noisy: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """At which measured steps, the first axis, more than half of the heads are noisy."""
    others = tuple(range(1, noisy.ndim))
    return 2 * noisy.sum(axis=others) > np.isfinite(ranks).sum(axis=others)
