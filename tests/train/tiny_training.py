"""A vision transformer small enough to train in a second; comparing runs to the bit."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml
from safetensors.torch import load_file

from rankrise.record.lines import read_lines
from rankrise.train import Reached, TrainSettings

TINY = TrainSettings(
    data="digits",
    image_size=8,
    patch_size=2,
    augmentation="crop",
    layers=2,
    heads=2,
    hidden_size=16,
    mlp_size=16,
    head_size=12,
    epochs=2,
    warm_up_epochs=0.5,
    batch_size=100,
    learning_rate=3e-3,
    precision="fp32",
    compile="none",
    evaluate_every=1,
    log_every=4,
    checkpoint_every=0.5,
    measurements=10,
    spectra_epochs=(1,),
)
"""15 steps an epoch; checkpoints at 8, 15, 22 and 30, the first in the middle of an epoch."""


def same_run(one: Path, other: Path) -> None:
    """Both records and the last checkpoints are the same to the bit, but for the times of day."""
    for name in ("steps.jsonl", "ranks.jsonl"):
        rows = [
            [{key: row[key] for key in row if key != "time"} for row in read_lines(folder / name)]
            for folder in (one, other)
        ]
        assert rows[0] == rows[1]
    for pattern in ("spectra/*.safetensors", "checkpoint/*/*.safetensors"):
        files = [sorted(path.relative_to(folder) for path in folder.glob(pattern)) for folder in (one, other)]
        assert files[0] == files[1]
        assert files[0]
        for file in files[0]:
            tensors, others = load_file(one / file), load_file(other / file)
            assert tensors.keys() == others.keys()
            assert all(tensors[name].equal(others[name]) for name in tensors), file


def stop_at(step: int) -> Callable[[Reached], None]:
    """What tells a run to stop when it reports that step."""

    def progress(where: Reached) -> None:
        if where.step == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return progress


def recipe_file(settings: TrainSettings, path: Path, **changes: object) -> Path:
    """The settings as a recipe."""
    path.write_text(yaml.safe_dump(replace(settings, **changes).to_dict()))
    return path
