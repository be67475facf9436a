"""A tracked run in words: its layers, ranks and moments, and where stages were searched."""

import re
from collections.abc import Mapping, Sequence

import numpy as np

from rankrise.watch import StagesFound, TrackedRun

STABLE = "stable"
LOSS = "loss"


def rank_kinds(run: TrackedRun, which: str) -> dict[str, np.ndarray]:
    """Recorded ranks of a product or matrix by name: "stable", "90 % energy" and so on, "entropy"."""
    energy = run.energy_rank(which)
    kinds = {f"{100 * share:.0f} % energy": energy[..., at] for at, share in enumerate(run.energy_shares)}
    kinds = {STABLE: run.stable_rank(which)} | kinds | {"entropy": run.entropy_rank(which)}
    return {kind: curve for kind, curve in kinds.items() if kind == STABLE or np.isfinite(curve).any()}


def head_count(run: TrackedRun) -> int:
    """How many heads were tracked, in all layers."""
    return sum(len(layer["tracked_heads"]) for layer in run.layers)


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
    shortest = min(map(len, parts))
    begin = next((at for at in range(shortest) if len({one[at] for one in parts}) > 1), shortest - 1)
    end = next((at for at in range(shortest - begin) if len({one[-1 - at] for one in parts}) > 1), 0)
    return [".".join(one[max(0, begin - 1) : len(one) - end]) for one in parts]


def layer_titles(run: TrackedRun) -> list[str]:
    """Each layer's number from 1, with its short name unless all layers are of one stack."""
    names = [layer["name"] for layer in run.layers]
    alike = len({re.sub(r"\d+", "", name) for name in names}) == 1
    return [
        f"layer {number}" if alike else f"layer {number} ({short})"
        for number, short in enumerate(short_names(names), start=1)
    ]


def searched(found: StagesFound, losses: Sequence[float], measured: int, heads: int) -> tuple[str, str]:
    """Where stages were searched ("loss and ranks", "loss", "ranks" or ""), and why not everywhere.

    >>> searched(StagesFound((), (), 400), [], measured=5, heads=12)
    ('', 'no loss was recorded, and 5 measurements are too few, or too far apart, to show one')
    >>> searched(StagesFound((), ("loss",), 400), [2.0] * 400, measured=400, heads=0)
    ('loss', 'no heads were tracked')
    """
    usable = int(np.sum(np.isfinite(losses) & (np.asarray(losses) > 0)))
    few = "{} are too few, or too far apart, to show one".format
    why_not = {
        LOSS: few(f"{usable} losses") if len(losses) else "no loss was recorded",
        "ranks": few(f"{measured} measurements") if heads else "no heads were tracked",
    }
    have = {LOSS: LOSS in found.searched, "ranks": bool({*found.searched} - {LOSS})}
    what = " and ".join(name for name, known in have.items() if known)
    return what, ", and ".join(why_not[name] for name, known in have.items() if not known)


def moment(run: TrackedRun, step: int) -> str:
    """A step on the run's clock: "epoch 25", "step 1200"."""
    epoch = float(run.at(step))
    return f"epoch {round(epoch, 1 if epoch > 1 else 2):g}" if run.clock == "epoch" else f"step {step}"


def length(run: TrackedRun) -> str:
    """How long a run has trained: "500 epochs", "1200 steps"."""
    unit, _, count = moment(run, run.last_step).partition(" ")
    return f"{count} {unit}{'' if count == '1' else 's'}"


def when(run: TrackedRun, step: int) -> str:
    """Whether a step is the end of training: "after training for 500 epochs", "at step 1200"."""
    return f"after training for {length(run)}" if step >= run.last_step else f"at {moment(run, step)}"


def ceiling_words(ceilings: Mapping[str, int]) -> str:
    """The highest rank of each change: an adapter's rank in a matrix, up to twice that in a head's product.

    >>> ceiling_words({"matrix": 8, "KQ": 16, "VO": 8})
    'a change has at most rank 8 in a matrix, 16 in KQ, 8 in VO'
    """
    places = (f"{rank} in {'a matrix' if what == 'matrix' else what}" for what, rank in ceilings.items())
    return f"a change has at most rank {', '.join(places)}"
