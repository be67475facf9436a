"""The paper: the normalised spectrum of the change decays much faster than that of the initial product."""

from collections.abc import Callable
from functools import partial

import numpy as np

from rankrise.claims.claim import Measure, at_most, noted
from rankrise.claims.heads import heads_of, judged_at
from rankrise.claims.statistics import worst
from rankrise.runs import NotRecorded, Study, TrackedRun

HALF = 0.5
AREA = "area under the normalised spectrum, of the change over that of the initial product"
CUT_OFFS = (0.1, 0.2, 0.3, 0.5)
"""Values above this fraction of the largest are counted: the first, and other choices."""
LATE = 0.9
"""From this fraction of training on, a spectrum counts as that of the end."""


def spectra_decay(study: Study) -> list[Measure]:
    """Change against initial product, head by head: how many values are large, and the area beneath."""
    measures: list[Measure] = []
    for product in study.main[0].products:
        counted = {
            cut: heads_of(study.main, partial(_ratios, product, partial(_above, cut)), product).by_layer()
            for cut in CUT_OFFS
        }
        areas = heads_of(study.main, partial(_ratios, product, _area), product)
        name = "number of large singular values, of the change over that of the initial product"
        measures += [
            noted(name, one, f"above {CUT_OFFS[0]:g} of the largest", part=product, layer=layer)
            for layer, one in counted[CUT_OFFS[0]].items()
        ]
        measures += [
            at_most(
                f"{name}, worst layer",
                worst(layers),
                HALF,
                f"much faster is at least twice as fast; large is above {cut:g} of the largest value",
                part=product,
                choice="" if cut == CUT_OFFS[0] else f"values above {cut:g} of the largest",
            )
            for cut, layers in counted.items()
        ]
        measures += [
            at_most(
                f"{AREA}, worst layer",
                worst(areas.by_layer()),
                HALF,
                "the same for the whole spectrum; the change may have twice as many values, which counts "
                "against it",
                part=product,
            ),
            noted(
                f"{AREA}, mean over heads",
                areas.mean(),
                f"at step {_last(study.main[0])}, the last with full spectra",
                part=product,
            ),
        ]
    return [*measures, *judged_at(study)]


def _last(run: TrackedRun) -> int:
    if not len(run.finite_spectra_steps):
        raise NotRecorded(f"{run.folder} has no full spectra yet.")
    last, end = int(run.finite_spectra_steps[-1]), run.last_step
    if last < LATE * end:
        raise NotRecorded(f"the last full spectrum is of step {last} of {end}: it says nothing of the end.")
    return last


def _ratios(product: str, size: Callable[[np.ndarray], np.ndarray], run: TrackedRun) -> list[np.ndarray]:
    """By layer, [heads]: the size of the change's spectrum over that of the initial one."""
    pairs = zip(run.spectrum(product), run.spectrum(product, _last(run)), strict=True)
    return [np.where(after[:, 0] > 0, size(after) / size(before), np.nan) for before, after in pairs]


def _above(cut: float, values: np.ndarray) -> np.ndarray:
    return (values > cut * values[:, :1]).sum(-1)


def _area(values: np.ndarray) -> np.ndarray:
    largest = values[:, 0].astype(float)
    return np.divide(values.sum(-1), largest, out=np.zeros_like(largest), where=largest > 0)
