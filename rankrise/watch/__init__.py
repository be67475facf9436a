"""Watch: every attention head's weights in one form, and the spectra and ranks of what they learned.

- `heads` reads the weights, and `check` proves by a forward pass that they are read rightly; `add_family`,
  `linear` and `Attention` teach it a module of your own.
- `change` holds two moments of them; `stable_rank`, `singular_values` and the rest measure it.
- `compare` does so for two checkpoints, and `overlap` asks whether two trainings learned the same directions.
- `RankTracker` follows a training run on a `Schedule`, also as a callback and with streams to other tools;
  `history` makes the same record of a series of checkpoints (`history_plan` says what it will read); `load`
  reads a record, and `find_stages` says where it steps.

The types that these return are in `rankrise.watch.types`.
"""

from typing import TYPE_CHECKING

from rankrise.foundations.deprecation import moved
from rankrise.watch._change import change
from rankrise.watch._check import check
from rankrise.watch._compare import compare
from rankrise.watch._families import Attention
from rankrise.watch._gram import frobenius_norm
from rankrise.watch._heads import heads
from rankrise.watch._history.history import history
from rankrise.watch._history.plan import history_plan
from rankrise.watch._linear import linear
from rankrise.watch._old_spellings import (  # noqa: F401
    change_singular_values,
    change_stable_rank,
    difference_singular_values,
)
from rankrise.watch._overlap import overlap
from rankrise.watch._ranks import effective_rank, energy_rank, rank_above
from rankrise.watch._ranks import normalised_spectrum as normalised_spectrum
from rankrise.watch._recognise import add_family, remove_family
from rankrise.watch._spectra import singular_values
from rankrise.watch._stable_rank import stable_rank
from rankrise.watch._stages import Curve as Curve
from rankrise.watch._stages import StagesFound as StagesFound
from rankrise.watch._stages import find_stages, find_steps
from rankrise.watch._subspaces import leading_vectors, principal_angles
from rankrise.watch._track.callbacks import huggingface_callback, lightning_callback
from rankrise.watch._track.load import TrackedRun as TrackedRun
from rankrise.watch._track.load import load
from rankrise.watch._track.schedule import Schedule, Spaced
from rankrise.watch._track.streams import tensorboard, trackio, wandb
from rankrise.watch._track.tracker import RankTracker

__all__ = [
    "Attention",
    "RankTracker",
    "Schedule",
    "Spaced",
    "add_family",
    "change",
    "check",
    "compare",
    "effective_rank",
    "energy_rank",
    "find_stages",
    "find_steps",
    "frobenius_norm",
    "heads",
    "history",
    "history_plan",
    "huggingface_callback",
    "leading_vectors",
    "lightning_callback",
    "linear",
    "load",
    "overlap",
    "principal_angles",
    "rank_above",
    "remove_family",
    "singular_values",
    "stable_rank",
    "tensorboard",
    "trackio",
    "wandb",
]

if not TYPE_CHECKING:
    __getattr__ = moved(
        __name__,
        {
            "Comparison": "rankrise.watch.types:ModelComparison",
            "Layer": "rankrise.watch.types:Layer",
            "Row": "rankrise.watch.types:MatrixChange",
            "SingularVectors": "rankrise.watch.types:SingularVectors",
            "Stage": "rankrise.watch.types:FoundStage",
            "Step": "rankrise.watch.types:FoundStep",
        },
    )
