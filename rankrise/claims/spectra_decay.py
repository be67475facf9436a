"""The paper: the normalised spectrum of the change decays much faster than that of the initial product."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from rankrise.claims.claim import Measure, at_most, by_each_choice, noted
from rankrise.claims.heads import heads_of, judged_at
from rankrise.claims.ranks import last_spectrum
from rankrise.claims.statistics import Estimate, Heads
from rankrise.runs import Study, TrackedRun

HALF = 0.5
COUNT = "number of large singular values, of the change over that of the initial product"
AREA = "area under the normalised spectrum, of the change over that of the initial product"
CUT_OFF = 0.1
"""Values above this fraction of the largest are counted."""
CHOICES: dict[str, dict[str, Any]] = {
    **{f"values above {cut:g} of the largest": {"cut": cut} for cut in (0.2, 0.3, 0.5)},
    "the mean over layers": {"over_layers": Heads.mean},
    "the median layer": {"over_layers": Heads.median_layer},
    "a threshold of 1": {"threshold": 1.0},
}


def spectra_decay(study: Study) -> list[Measure]:
    """Change against initial product, head by head: how many values are large, and the area beneath."""
    measures: list[Measure] = []
    for product in study.main[0].products:
        measures += [
            noted(COUNT, one, f"above {CUT_OFF:g} of the largest", part=product, layer=layer)
            for layer, one in _counts(study, product, CUT_OFF).by_layer().items()
        ]
        measures += [
            *by_each_choice(partial(_deciding, study, product), CHOICES),
            noted(
                f"{AREA}, mean over heads",
                _areas(study, product).mean(),
                f"at step {last_spectrum(study.main[0])}, the last with full spectra",
                part=product,
            ),
        ]
    return [*measures, *judged_at(study)]


def _deciding(
    study: Study,
    product: str,
    cut: float = CUT_OFF,
    over_layers: Callable[[Heads], Estimate] = Heads.largest_layer,
    threshold: float = HALF,
) -> list[Measure]:
    return [
        at_most(
            f"{COUNT}, worst layer",
            over_layers(_counts(study, product, cut)),
            threshold,
            f"much faster is at least twice as fast; large is above {cut:g} of the largest value",
            part=product,
        ),
        at_most(
            f"{AREA}, worst layer",
            over_layers(_areas(study, product)),
            threshold,
            "the same for the whole spectrum; the change may have twice as many values, which counts "
            "against it",
            part=product,
        ),
    ]


def _counts(study: Study, product: str, cut: float) -> Heads:
    return heads_of(study.main, partial(_ratios, product, partial(_above, cut)), product)


def _areas(study: Study, product: str) -> Heads:
    return heads_of(study.main, partial(_ratios, product, _area), product)


def _ratios(product: str, size: Callable[[np.ndarray], np.ndarray], run: TrackedRun) -> list[np.ndarray]:
    """By layer, [heads]: the size of the change's spectrum over that of the initial one."""
    pairs = zip(run.spectrum(product), run.spectrum(product, last_spectrum(run)), strict=True)
    return [np.where(after[:, 0] > 0, size(after) / size(before), np.nan) for before, after in pairs]


def _above(cut: float, values: np.ndarray) -> np.ndarray:
    return (values > cut * values[:, :1]).sum(-1)


def _area(values: np.ndarray) -> np.ndarray:
    largest = values[:, 0].astype(float)
    return np.divide(values.sum(-1), largest, out=np.zeros_like(largest), where=largest > 0)
