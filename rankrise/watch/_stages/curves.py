"""The curves of a tracked run in which stages are looked for."""

from dataclasses import dataclass

import numpy as np

from rankrise.watch._stages.steps import Direction, Scale
from rankrise.watch._track.load import TrackedRun


@dataclass(frozen=True, eq=False)
class Curve:
    """Something that may step: `values` (n,) at training steps `steps` (n,).

    `alone` says whether a step of this curve makes a stage without another's.
    """

    name: str
    steps: np.ndarray
    values: np.ndarray
    direction: Direction = "up"
    scale: Scale = "log"
    alone: bool = True


def curves_of(run: TrackedRun) -> list[Curve]:
    """The loss; for every layer and product the median stable rank of its heads (what a typical head does)
    and the total of their leading singular values (what any of them does); for every product the stable rank
    of all heads together, where there are several layers. Steps at which the change of most heads is rounding
    noise are left out.
    """
    recorded = run.steps()
    curves = []
    if "loss" in recorded:
        curves.append(Curve("loss", recorded["step"], recorded["loss"], direction="down"))
    for product in run.products:
        ranks, values = run.stable_rank(product), np.nansum(run.top(product), axis=(2, 3))
        noisy = run.below_noise(product)
        for place, layer in enumerate(run.layers):
            name, heads = f"{layer['name']} {product}", ranks[:, place]
            heads = heads[:, ~np.isnan(heads).all(0)]
            typical = np.median(heads, axis=1) if heads.size else np.zeros(len(heads))
            told = ~_mostly(noisy[:, place], ranks[:, place])
            steps, total = run.measured[told], values[told, place]
            curves += [
                Curve(f"{name} stable rank", steps, typical[told], alone=False),
                Curve(f"{name} singular values", steps, total, scale="linear", alone=False),
            ]
        if len(run.layers) == 1:  # it would say the same again, and seem to confirm it
            continue
        told = ~_mostly(noisy, ranks)
        total = np.nansum(ranks, axis=(1, 2))
        curves.append(Curve(f"all {product} stable rank", run.measured[told], total[told], alone=False))
    return curves


def _mostly(noisy: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """At which of the measured steps, the first axis, more than half of the heads are noisy."""
    others = tuple(range(1, noisy.ndim))
    return 2 * noisy.sum(axis=others) > np.isfinite(ranks).sum(axis=others)
