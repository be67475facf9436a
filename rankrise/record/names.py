"""Names of the files in a run's folder, defined here and nowhere else."""

import re
from pathlib import Path

RUN = "run.json"
INITIAL = "initial.safetensors"
STEPS = "steps.jsonl"
"""Loss and metrics, one row per step."""
RANKS = "ranks.jsonl"
"""Measured ranks, norms and leading singular values, one row per step."""
TRUNCATION = "truncation.json"
"""Loss and gain against rank, from `rankrise truncate RUN --out RUN`."""
SWEEP = "sweep.json"
"""In a sweep's folder, beside the folders of its runs."""
CHECKPOINTS = "checkpoint"
WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimiser.safetensors", "state.safetensors"
"""A checkpoint's tensors: the model, its optimiser, and everything else needed to resume."""
ABOUT = "state.json"
"""A checkpoint's step, run id and checksums; written last."""
CONFIG = "config.json"
"""The model's configuration beside its weights, as transformers writes it."""
SERIES = "series"
"""Checkpoints of weights alone, from `rankrise train --keep_series`."""
LOCK = ".lock"

BEGUN = {INITIAL, STEPS, RANKS}
"""What a folder holds when a tracked run was killed before its run.json was written."""


def spectra_path(folder: Path, step: int | None) -> Path:
    """The file with the full spectra of a step; None for those of the initial weights."""
    return folder / "spectra" / f"{'initial' if step is None else f'step-{step:010d}'}.safetensors"


def spectra_steps(folder: Path) -> list[int]:
    """The steps that have full spectra, in order; other files in that folder are ignored."""
    names = (re.fullmatch(r"step-(\d{10,18})\.safetensors", path.name) for path in folder.glob("spectra/*"))
    return sorted(int(name[1]) for name in names if name)


def tensor_name(layer: str, part: str) -> str:
    """The name of a layer's role or product in a file of tensors. A model that is one layer has no name.

    >>> tensor_name("h.0.attn", "query"), tensor_name("", "KQ")
    ('h.0.attn.query', 'KQ')
    """
    return f"{layer}.{part}" if layer else part


def checkpoint_path(folder: Path, step: int, kind: str = CHECKPOINTS) -> Path:
    """The folder of one checkpoint, among `CHECKPOINTS` or `SERIES`."""
    return folder / kind / f"step-{step:010d}"


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint of a run, even if a file in it is damaged. Half-removed ones do not count."""
    found = (Path(folder) / CHECKPOINTS).glob(f"step-*/{ABOUT}")
    return max((path.parent for path in found if path.parent.name[5:].isdecimal()), default=None)


def remove_unfinished(folder: Path) -> None:
    """Remove the temporary files of a killed process: ours, and those of safetensors."""
    ours = (".run-*.json", ".initial-*.safetensors", "spectra/.*-*.safetensors", "seed-*/.*")
    for pattern in (*ours, ".tmp??????", "spectra/.tmp??????"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
