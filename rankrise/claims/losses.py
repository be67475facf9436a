"""How much tracked runs have learned, by their training losses."""

from collections.abc import Sequence

import numpy as np

from rankrise.runs import TrackedRun


def losses(members: Sequence[TrackedRun]) -> np.ndarray:
    """The first and the last finite training loss of each run that recorded any, [runs, 2]."""
    recorded = [one.steps().get("loss", np.empty(0)) for one in members]
    finite = [loss[np.isfinite(loss)] for loss in recorded]
    return np.array([(loss[0], loss[-1]) for loss in finite if len(loss)]).reshape(-1, 2)
