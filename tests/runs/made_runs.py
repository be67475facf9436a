"""Tracked runs made by hand: a record that says what a test wants it to say."""

from pathlib import Path
from typing import Any

import numpy as np

from rankrise.record.folder import RANKS, STEPS, Lines, write_run

HEADS = 2


def tracked(folder: Path, steps: int = 20, rank: Any = lambda step: float(step > 0), **recipe: Any) -> Path:
    """One layer of two heads of the same `rank`, measured at every step; the loss falls at once in the
    middle.
    """
    layer = {"name": "layer", "heads": HEADS, "tracked_heads": [0, 1], "d_model": 8, "d_head": 4}
    settings = {"products": ["KQ", "VO"], "top": 1}
    extra = {"recipe": {"data": "digits"} | recipe} if recipe else {}
    about = {"model": "Made", "settings": settings, "layers": [layer], "matrices": [], "extra": extra}
    write_run(folder, "tracked", about | {"finished": "now"})
    recorded, ranks = Lines(folder / STEPS), Lines(folder / RANKS)
    noise = np.random.default_rng(0).standard_normal(steps + 1)
    for step in range(steps + 1):
        level = 2.0 if step < steps // 2 else 1.0
        recorded.append(step, {"time": float(step), "loss": level * float(np.exp(0.01 * noise[step]))})
        measured = {
            "stable_rank": [[float(rank(step))] * HEADS],
            "norm": [[float(step)] * HEADS],
            "top": [[[float(step)]] * HEADS],
        }
        ranks.append(step, {"time": float(step), "KQ": measured, "VO": measured})
    recorded.close()
    ranks.close()
    return folder
