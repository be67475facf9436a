"""The ranks that a run may have beside the stable rank, by the names under which they are shown."""

import numpy as np

from rankrise.runs import TrackedRun

STABLE = "stable"

BOUND = "up to twice the head size, since a head's change is a difference of two products"
"""How large the rank of a change can be, which surprises where an energy rank exceeds the head size."""


def rank_kinds(run: TrackedRun, which: str) -> dict[str, np.ndarray]:
    """Curves of a product or a matrix: "stable", and of "90 % energy", "95 % energy", "99 % energy" (how many
    directions hold so much of the change's energy) and "entropy" those that the record has."""
    kinds = _kinds(run, which)
    return {kind: kinds[kind] for kind in _recorded([kinds])}


def product_rank_kinds(run: TrackedRun) -> dict[str, dict[str, np.ndarray]]:
    """The same by product, each with all that are recorded of any: nan where it is of others alone."""
    products = {product: _kinds(run, product) for product in run.products}
    recorded = _recorded(list(products.values()))
    return {product: {kind: kinds[kind] for kind in recorded} for product, kinds in products.items()}


def _kinds(run: TrackedRun, which: str) -> dict[str, np.ndarray]:
    energy = run.energy_rank(which)
    shares = {f"{100 * share:.0f} % energy": energy[..., at] for at, share in enumerate(run.energy_shares)}
    return {STABLE: run.stable_rank(which), **shares, "entropy": run.entropy_rank(which)}


def _recorded(several: list[dict[str, np.ndarray]]) -> list[str]:
    """The stable rank, and what else is known of one of them at some step."""
    kinds = several[0] if several else {}
    return [kind for kind in kinds if kind == STABLE or any(np.isfinite(one[kind]).any() for one in several)]
