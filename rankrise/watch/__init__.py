"""Watch: every attention head's weights in one form, and the spectra and ranks of what they learned.

- `heads` reads the weights, and `check` proves by a forward pass that they are read rightly; `add_family`,
  `linear` and `Attention` teach it a module of your own.
- `change` holds two moments of them; `stable_rank`, `singular_values` and the rest measure it.
- `compare` does so for two checkpoints, and `overlap` asks whether two trainings learned the same directions.
- `RankTracker` follows a training run on a `Schedule`, also as a callback and with streams to other tools;
  `history` makes the same record of a series of checkpoints; `load` reads a record, and `find_stages` says
  where it steps.

The types that these return are in `rankrise.watch.types`.
"""

from rankrise.record.run import TrackedRun as TrackedRun
from rankrise.record.run import load
from rankrise.watch._callbacks import huggingface_callback, lightning_callback
from rankrise.watch._change import change
from rankrise.watch._check import check
from rankrise.watch._compare import compare, overlap
from rankrise.watch._families import Attention
from rankrise.watch._heads import add_family, heads, remove_family
from rankrise.watch._history import history
from rankrise.watch._linear import linear
from rankrise.watch._ranks import effective_rank, energy_rank, stable_rank
from rankrise.watch._schedule import Schedule, Spaced
from rankrise.watch._spectra import leading_vectors, singular_values
from rankrise.watch._stages import Curve as Curve
from rankrise.watch._stages import StagesFound as StagesFound
from rankrise.watch._stages import find_stages
from rankrise.watch._streams import TensorBoard as tensorboard
from rankrise.watch._streams import Trackio as trackio
from rankrise.watch._streams import WeightsAndBiases as wandb
from rankrise.watch._tracker import RankTracker

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
    "heads",
    "history",
    "huggingface_callback",
    "leading_vectors",
    "lightning_callback",
    "linear",
    "load",
    "overlap",
    "remove_family",
    "singular_values",
    "stable_rank",
    "tensorboard",
    "trackio",
    "wandb",
]
