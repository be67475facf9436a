"""The ranks that a run may have beside the stable rank, by the names under which they are shown."""

import numpy as np

from rankrise.runs import TrackedRun

STABLE = "stable"

BOUND = "up to twice the head size, since a head's change is a difference of two products"
"""How large the rank of a change can be, which surprises where an energy rank exceeds the head size."""


def rank_kinds(run: TrackedRun, which: str) -> dict[str, np.ndarray]:
    """Curves of a product or a matrix: "stable", and of "90 % energy", "95 % energy", "99 % energy" (how many
    directions hold so much of the change's energy) and "entropy" those that the record has."""
    energy = run.energy_rank(which)
    others = {f"{100 * share:.0f} % energy": energy[..., at] for at, share in enumerate(run.energy_shares)}
    others["entropy"] = run.entropy_rank(which)
    recorded = {name: curves for name, curves in others.items() if np.isfinite(curves).any()}
    return {STABLE: run.stable_rank(which), **recorded}
