"""Heads of tracked runs as samples: those of a layer, of all seeds together, that training has changed."""

from collections.abc import Sequence

import numpy as np

from rankrise.claims.claim import Measure, told
from rankrise.runs import NotRecorded, Study, TrackedRun


def at_the_end(members: Sequence[TrackedRun], product: str) -> list[np.ndarray]:
    """By layer: the stable rank of the change at the last measured step, [heads of all seeds].

    Heads that never changed (frozen ones) have no rank to speak of and are left out.
    """
    if any(not len(one.finite_steps) for one in members):
        raise NotRecorded("a run has no measured step with finite weights yet")
    pooled = np.concatenate([one.ranks[product][-1] for one in members], axis=1)
    layers = [heads[np.isfinite(heads) & (heads > 0)] for heads in pooled]
    if not any(len(heads) for heads in layers):
        raise NotRecorded(f"no head's {product} has changed: it was frozen, or the run has only begun")
    return layers


def judged_at(study: Study) -> list[Measure]:
    """From how many heads and seeds, and where a run is not finished, up to which step."""
    main = study.main
    heads = sum(len(layer["tracked_heads"]) for one in main for layer in one.layers)
    seeds = f"{len(main)} {'seed' if len(main) == 1 else 'seeds'}"
    measures = [told("heads judged", float(heads), f"in {len(main[0].layers)} layers, {seeds}")]
    if not all(one.finished for one in main):
        last = min(one.last_finite_step for one in main)
        why = "the run is not finished, and the verdict is of now"
        measures.append(told("judged at step", float(last), why))
    return measures
