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
from rankrise.record.run import load as load
from rankrise.watch._callbacks import huggingface_callback as huggingface_callback
from rankrise.watch._callbacks import lightning_callback as lightning_callback
from rankrise.watch._change import change as change
from rankrise.watch._check import check as check
from rankrise.watch._compare import compare as compare
from rankrise.watch._compare import overlap as overlap
from rankrise.watch._families import Attention as Attention
from rankrise.watch._heads import add_family as add_family
from rankrise.watch._heads import heads as heads
from rankrise.watch._heads import remove_family as remove_family
from rankrise.watch._history import history as history
from rankrise.watch._linear import linear as linear
from rankrise.watch._ranks import effective_rank as effective_rank
from rankrise.watch._ranks import energy_rank as energy_rank
from rankrise.watch._ranks import stable_rank as stable_rank
from rankrise.watch._spectra import leading_vectors as leading_vectors
from rankrise.watch._spectra import singular_values as singular_values
from rankrise.watch._stages import Curve as Curve
from rankrise.watch._stages import StagesFound as StagesFound
from rankrise.watch._stages import find_stages as find_stages
from rankrise.watch._streams import TensorBoard, Trackio, WeightsAndBiases
from rankrise.watch._tracker import RankTracker as RankTracker
from rankrise.watch._tracker import Schedule as Schedule
from rankrise.watch._tracker import Spaced as Spaced

tensorboard, trackio, wandb = TensorBoard, Trackio, WeightsAndBiases
