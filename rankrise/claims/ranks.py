"""Which rank of a change is meant: the stable rank, by which claims are judged, and others beside it."""

import numpy as np

from rankrise import watch
from rankrise.runs import NotRecorded, TrackedRun

STABLE = "the stable rank"
ENTROPY = "the entropy rank"
ENERGY = {f"directions for {100 * share:.0f} % of the energy": share for share in TrackedRun.energy_shares}
"""Energy ranks, with the share of each."""
OTHERS = (ENTROPY, *ENERGY)

LATE = 0.9
"""From this fraction of training on, a spectrum counts as that of the end."""


def ranks_of(run: TrackedRun, product: str, kind: str = STABLE) -> tuple[np.ndarray, np.ndarray]:
    """The finite steps at which a rank is known, and the rank there, [steps, layers, heads].

    A record that was made without the other ranks has them where it has full spectra.
    """
    if product not in run.products:
        raise NotRecorded(f"{run.folder} has no {product}, which another run was tracked with.")
    if kind == STABLE:
        return run.finite_steps, run.ranks[product]
    if kind == ENTROPY:
        ranks = run.entropy_rank(product)[run.finite]
    else:
        ranks = run.energy_rank(product)[run.finite][..., list(ENERGY).index(kind)]
    if not np.isfinite(ranks).any():
        ranks = _of_spectra(run, product, kind, ranks.shape)
    known = np.isfinite(ranks).any(axis=(1, 2))
    if not known.any():
        raise NotRecorded(f"{run.folder} has neither {kind} nor full spectra.")
    steps = run.finite_steps[known]
    _refuse_early(int(steps[-1]), run.last_finite_step)
    return steps, ranks[known]


def last_ranks(run: TrackedRun, product: str, kind: str = STABLE) -> np.ndarray:
    """The rank at the end, [layers, heads]."""
    if not len(run.finite_steps):
        raise NotRecorded("a run has no measured step with finite weights yet.")
    return ranks_of(run, product, kind)[1][-1]


def last_spectrum(run: TrackedRun) -> int:
    """The last step with full spectra, which has to be near the end."""
    if not len(run.finite_spectra_steps):
        raise NotRecorded(f"{run.folder} has no full spectra yet.")
    last = int(run.finite_spectra_steps[-1])
    _refuse_early(last, run.last_step)
    return last


def _refuse_early(last: int, end: int) -> None:
    if last < LATE * end:
        raise NotRecorded(f"the last full spectrum is of step {last} of {end}: it says nothing of the end.")


def _of_spectra(run: TrackedRun, product: str, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """The rank from full spectra, nan at the steps that have none."""
    ranks = np.full(shape, np.nan)
    for place, step in enumerate(run.finite_steps):
        if step in run.finite_spectra_steps:
            for layer, values in enumerate(run.spectrum(product, int(step))):
                counted = (
                    watch.effective_rank(values)
                    if kind == ENTROPY
                    else watch.energy_rank(values, ENERGY[kind])
                )
                ranks[place, layer, : len(values)] = counted
    return ranks
