"""A tracked run in words: its layers, ranks and moments."""

import re
from collections.abc import Sequence

import numpy as np

from rankrise.watch import TrackedRun

STABLE = "stable"


def rank_kinds(run: TrackedRun, which: str) -> dict[str, np.ndarray]:
    """Recorded ranks of a product or matrix by name: "stable", "90 % energy" and so on, "entropy"."""
    energy = run.energy_rank(which)
    kinds = {f"{100 * share:.0f} % energy": energy[..., at] for at, share in enumerate(run.energy_shares)}
    kinds = {STABLE: run.stable_rank(which)} | kinds | {"entropy": run.entropy_rank(which)}
    return {kind: curve for kind, curve in kinds.items() if kind == STABLE or np.isfinite(curve).any()}


def short_names(names: Sequence[str]) -> list[str]:
    """Layer names without what all begin with (but for its last part) and end with.

    >>> short_names(["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"])
    ['layers.0', 'layers.1']
    >>> short_names(["transformer.h.0.attn"])
    ['h.0.attn']
    """
    parts = [name.split(".") for name in names]
    if len(parts) < 2:
        return [".".join(one[-3:]) for one in parts]
    begin, end = _shared(parts), _shared([one[::-1] for one in parts])
    return [".".join(one[max(0, begin - 1) : max(begin + 1, len(one) - end)]) for one in parts]


def _shared(parts: Sequence[Sequence[str]]) -> int:
    """How many first parts all names share."""
    columns = enumerate(zip(*parts, strict=False))
    return next((at for at, column in columns if len({*column}) > 1), min(map(len, parts)))


def layer_titles(run: TrackedRun) -> list[str]:
    """Each layer's number from 1, with its short name unless all layers are of one stack."""
    names = [layer["name"] for layer in run.layers]
    alike = len({re.sub(r"\d+", "", name) for name in names}) == 1
    return [
        f"layer {number}" if alike else f"layer {number} ({short})"
        for number, short in enumerate(short_names(names), start=1)
    ]


def moment(run: TrackedRun, step: int) -> str:
    """A step on the run's clock: "epoch 25", "step 1200"."""
    epoch = float(run.at(step))
    return f"epoch {round(epoch, 1 if epoch > 1 else 2):g}" if run.clock == "epoch" else f"step {step}"


def length(run: TrackedRun) -> str:
    """How long a run has trained: "500 epochs", "1200 steps"."""
    unit, _, count = moment(run, run.last_step).partition(" ")
    return f"{count} {unit}{'' if count == '1' else 's'}"
