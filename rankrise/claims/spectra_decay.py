"""Claim 5: the normalised spectrum of the change decays much faster than that of the initial product."""

import numpy as np

from rankrise.claims.claim import Measure, at_most, told
from rankrise.claims.heads import judged_at
from rankrise.claims.statistics import mean_bounds
from rankrise.runs import NotRecorded, Study, TrackedRun

HALF = 0.5
TENTH = 0.1
LATE = 0.9
"""From this part of training on, a spectrum counts as that of the end."""


def spectra_decay(study: Study) -> list[Measure]:
    """Change against initial product, head by head: how many values exceed a tenth, and the area beneath."""
    measures: list[Measure] = []
    for product in study.main[0].products:
        pairs = [_spectra(one, product) for one in study.main]
        layers = [np.concatenate(same) for same in zip(*(_ratios(*pair) for pair in pairs), strict=True)]
        layers = [heads for heads in layers if len(heads)]
        if not layers:
            raise NotRecorded(f"no head's {product} has changed")
        counts, areas = (max(mean_bounds(heads[:, place])[1] for heads in layers) for place in (0, 1))
        measures += [
            at_most(
                f"values above a tenth of the largest, change / initial {product}, worst layer (upper bound)",
                counts,
                HALF,
                "much faster is at least twice as fast; upper 95 % bound of the mean over heads",
            ),
            at_most(
                f"area under the normalised spectrum, change / initial {product}, worst layer (upper bound)",
                areas,
                HALF,
                "the same for the whole spectrum; the change may have twice as many values, which counts "
                "against it",
            ),
            told(
                f"the same area, mean over all heads of {product}",
                float(np.concatenate(layers)[:, 1].mean()),
                f"at step {int(study.main[0].finite_spectra_steps[-1])}, the last with full spectra",
            ),
        ]
    return [*measures, *judged_at(study)]


def _spectra(member: TrackedRun, product: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    if not len(member.finite_spectra_steps):
        raise NotRecorded(f"{member.folder} has no full spectra yet")
    last, end = int(member.finite_spectra_steps[-1]), member.last_step
    if last < LATE * end:
        raise NotRecorded(f"the last full spectrum is of step {last} of {end}: it says nothing of the end")
    return member.spectrum(product), member.spectrum(product, last)


def _ratios(initial: list[np.ndarray], change: list[np.ndarray]) -> list[np.ndarray]:
    """By layer, (heads, 2): values above a tenth of the largest, and the area, of change over initial."""
    return [
        np.stack([_above(after) / _above(before), _area(after) / _area(before)], axis=1)[after[:, 0] > 0]
        for before, after in zip(initial, change, strict=True)
    ]


def _above(values: np.ndarray) -> np.ndarray:
    return (values > TENTH * values[:, :1]).sum(-1)


def _area(values: np.ndarray) -> np.ndarray:
    largest = values[:, 0].astype(float)
    return np.divide(values.sum(-1), largest, out=np.zeros_like(largest), where=largest > 0)
