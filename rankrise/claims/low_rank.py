"""The paper on tracked runs: the change is of low rank, far below the size of a head."""

import numpy as np

from rankrise.claims.claim import Measure, at_most, noted
from rankrise.claims.heads import at_the_end, judged_at
from rankrise.claims.learned import how_much
from rankrise.claims.statistics import Heads, worst
from rankrise.runs import NotRecorded, Study, TrackedRun

FAR_BELOW = 0.1
OTHERWISE = (0.2, 0.3)
"""Other readings of "far below"."""
SMALLEST_HEAD = 20
ENERGY = 0.9


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
        heads = at_the_end(study.main, product)
        over_size = [
            [seed / sizes[number - 1] for seed in layer]
            for number, layer in zip(heads.layers, heads.values, strict=True)
        ]
        layers = Heads(heads.layers, over_size).by_layer()
        name = "stable rank of the change, as a fraction of the head size"
        measures += [
            noted(name, share, "mean over heads", part=product, layer=layer)
            for layer, share in layers.items()
        ]
        most = worst(layers)
        where = {"part": product}
        measures += [
            at_most(f"{name}, worst layer", most, FAR_BELOW, "far below is an order of magnitude", **where),
            *(
                at_most(f"{name}, worst layer", most, cut, "", **where, choice=f"a threshold of {cut:g}")
                for cut in OTHERWISE
            ),
            noted(
                "stable rank of the initial product, as a fraction of the head size, mean over heads",
                float(np.mean(_initial(first, product) / sizes)),
                "what random weights have",
                **where,
            ),
            *_energy(first, product),
        ]
    return [*measures, *how_much(study.main), *judged_at(study)]


def _initial(run: TrackedRun, product: str) -> np.ndarray:
    """The stable rank of the initial product, mean over heads, [layers]."""
    layers = run.spectrum(product)
    return np.array([((values**2).sum(-1) / values[:, 0] ** 2).mean() for values in layers])


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
