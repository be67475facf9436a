"""The paper on tracked runs: the change is of low rank, far below the size of a head."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rankrise.claims.claim import Measure, at_most, by_each_choice, noted
from rankrise.claims.heads import at_the_end, judged_at
from rankrise.claims.learned import how_much
from rankrise.claims.ranks import OTHERS, STABLE
from rankrise.claims.statistics import Estimate, Heads
from rankrise.runs import NotRecorded, Study, TrackedRun

FAR_BELOW = 0.1
OTHERWISE = (0.2, 0.3)
"""Other readings of "far below"."""
SMALLEST_HEAD = 20
ENERGY = 0.9
NAME = "stable rank of the change, as a fraction of the head size"
WHY = "far below is an order of magnitude"
CHOICES: dict[str, dict[str, Any]] = {
    "the mean over layers": {"over_layers": Heads.mean},
    "the median layer": {"over_layers": Heads.median_layer},
    **{f"a threshold of {cut:g}": {"threshold": cut} for cut in OTHERWISE},
    **{kind: {"kind": kind} for kind in OTHERS},
}


def low_rank(study: Study) -> list[Measure]:
    """The stable rank of the change at the end of training over the size of a head, in each layer."""
    first = study.main[0]
    sizes = [int(layer["d_head"]) for layer in first.layers]
    if min(sizes) < SMALLEST_HEAD:
        raise NotRecorded(
            f"a tenth of the head size {min(sizes)} is below 2, where only rank one would pass: "
            f"train heads of size {SMALLEST_HEAD} or more."
        )
    measures: list[Measure] = []
    for product in first.products:
        measures += [
            noted(NAME, share, "mean over heads", part=product, layer=layer)
            for layer, share in _over_size(study, product).by_layer().items()
        ]
        measures += [
            *by_each_choice(partial(_deciding, study, product), CHOICES),
            *_initial(first, product),
            *_energy(first, product),
        ]
    return [*measures, *how_much(study.main), *judged_at(study)]


def _deciding(
    study: Study,
    product: str,
    kind: str = STABLE,
    over_layers: Callable[[Heads], Estimate] = Heads.largest_layer,
    threshold: float = FAR_BELOW,
) -> list[Measure]:
    share = over_layers(_over_size(study, product, kind))
    return [at_most(f"{NAME}, worst layer", share, threshold, WHY, part=product)]


def _over_size(study: Study, product: str, kind: str = STABLE) -> Heads:
    """The rank over the size of a head."""
    heads = at_the_end(study.main, product, kind)
    sizes = [int(study.main[0].layers[number - 1]["d_head"]) for number in heads.layers]
    return Heads(
        heads.layers,
        [[seed / size for seed in layer] for size, layer in zip(sizes, heads.values, strict=True)],
    )


def _initial(run: TrackedRun, product: str) -> list[Measure]:
    """The stable rank of the initial product, where the record has its spectrum; 0 of a head that began at
    0."""
    try:
        layers = [np.asarray(values, float) for values in run.spectrum(product)]
    except NotRecorded:
        return []
    parts = [values / np.where(values[:, :1] > 0, values[:, :1], 1.0) for values in layers]
    shares = [
        (part**2).sum(-1).mean() / layer["d_head"] for part, layer in zip(parts, run.layers, strict=True)
    ]
    return [
        noted(
            "stable rank of the initial product, as a fraction of the head size, mean over heads",
            float(np.mean(shares)),
            "what random weights have",
            part=product,
        )
    ]


def _energy(run: TrackedRun, product: str) -> list[Measure]:
    """How many directions hold most of the change's energy: the stable rank says nothing of a long tail."""
    if not len(run.finite_spectra_steps):
        return []
    step = int(run.finite_spectra_steps[-1])
    counts = []
    for values in run.spectrum(product, step):
        energy = np.cumsum(np.asarray(values, float) ** 2, axis=1)
        counts += [float((one < ENERGY * one[-1]).sum() + 1) for one in energy if one[-1] > 0]
    if not counts:
        return []
    return [
        noted(
            f"directions that hold {100 * ENERGY:.0f} % of the change's energy, mean over heads",
            float(np.mean(counts)),
            f"from {min(counts):g} to {max(counts):g}; a low stable rank may have a long tail beneath",
            part=product,
        )
    ]
