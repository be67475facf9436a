"""The files in the folder of a run. They are named here and nowhere else."""

import re
from pathlib import Path

from rankrise.record.lines import MOST

RUN = "run.json"
INITIAL = "initial.safetensors"
STEPS = "steps.jsonl"
RANKS = "ranks.jsonl"
STAGES = "stages.json"
"""The stages that `rankrise watch --keep_stages` found."""
TRUNCATION = "truncation.json"
"""What `rankrise truncate RUN --out RUN` measured: loss and gain against rank."""
SWEEP = "sweep.json"
"""In the folder of a sweep, beside the folders of its runs."""
CHECKPOINTS = "checkpoint"
WEIGHTS, MOMENTS, STATE = "model.safetensors", "optimiser.safetensors", "state.safetensors"
"""The tensors of a checkpoint: of the model, of its optimiser, and of all else that a run goes on with."""
ABOUT = "state.json"
"""A checkpoint's step and checksums, written last: a checkpoint without it is damaged."""
CONFIG = "config.json"
"""Beside the weights of a model: what it is, as transformers writes it."""
SERIES = "series"
"""The checkpoints of weights alone that `rankrise train --keep_series` keeps."""
LOCK = ".lock"

BEGUN = {INITIAL, STEPS, RANKS}
"""What a folder holds when a tracked run was killed before its run.json was written."""

UNFINISHED = (
    ".run-*.json", ".initial-*.safetensors", "spectra/.*-*.safetensors", ".tmp??????", "spectra/.tmp??????",
    "seed-*/.*",
)  # fmt: skip
"""What a killed process was writing, under our temporary names and those of safetensors within."""


def spectra_path(folder: Path, step: int | None) -> Path:
    """The file with the full spectra of a step; None for those of the initial products."""
    return folder / "spectra" / f"{'initial' if step is None else f'step-{step:010d}'}.safetensors"


def spectra_step(path: Path) -> int | None:
    """The step of such a file; None for one with another name, as that of the initial products.

    >>> spectra_step(Path("spectra/step-0000000100.safetensors")), spectra_step(Path("spectra/step-1.csv"))
    (100, None)
    """
    number = path.name.removeprefix("step-").removesuffix(".safetensors")
    step = int(number) if number.isdecimal() and number.isascii() and len(number) < 20 else None
    named = step is not None and step < MOST and spectra_path(Path(), step).name == path.name
    return step if named else None


def spectra_steps(folder: Path) -> list[int]:
    """The steps that have such a file, in order; files with other names are ignored."""
    files = (path for path in folder.glob("spectra/step-*.safetensors") if path.is_file())
    return sorted(step for path in files if (step := spectra_step(path)) is not None)


def tensor_name(layer: str, part: str) -> str:
    """A role's weights, or a product's spectra, of a layer in a file of tensors; a model that is itself one
    layer has no name.

    >>> tensor_name("h.0.attn", "query"), tensor_name("", "KQ")
    ('h.0.attn.query', 'KQ')
    """
    return f"{layer}.{part}" if layer else part


def checkpoint_path(folder: Path, step: int, kind: str = CHECKPOINTS) -> Path:
    """The folder of a checkpoint, or of one in the series that is kept."""
    return folder / kind / f"step-{step:010d}"


def latest_checkpoint(folder: str | Path) -> Path | None:
    """The newest checkpoint of a run, be it damaged; what was being written when the run was killed does not
    count, and has another name."""
    found = (Path(folder) / CHECKPOINTS).glob("step-[0-9]*/*")
    ours = (path.parent for path in found if re.fullmatch(r"step-[0-9]+", path.parent.name))
    return max(ours, default=None)


def remove_unfinished(folder: Path) -> None:
    """Remove what a killed process was writing."""
    for pattern in UNFINISHED:
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
