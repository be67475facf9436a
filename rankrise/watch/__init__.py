"""Watch: every attention head's weights in one form, and the spectra and ranks of what they learned."""

from rankrise.watch._compare import Comparison, Row, compare
from rankrise.watch._factors import change
from rankrise.watch._families import Attention, add_family
from rankrise.watch._gram import frobenius_norm
from rankrise.watch._heads import Layer, heads
from rankrise.watch._projection import linear
from rankrise.watch._ranks import effective_rank, energy_rank, normalised_spectrum, rank_above
from rankrise.watch._spectra import change_singular_values, difference_singular_values, singular_values
from rankrise.watch._stable_rank import change_stable_rank, stable_rank
from rankrise.watch._stages import Curve, Stage, StagesFound, Step, find_stages, find_steps
from rankrise.watch._subspaces import SingularVectors, leading_vectors, principal_angles
from rankrise.watch._track.callbacks import huggingface_callback, lightning_callback
from rankrise.watch._track.load import TrackedRun, load
from rankrise.watch._track.schedule import Schedule, Spaced
from rankrise.watch._track.streams import tensorboard, trackio, wandb
from rankrise.watch._track.tracker import RankTracker

__all__ = [
    "Attention",
    "Comparison",
    "Curve",
    "Layer",
    "RankTracker",
    "Row",
    "Schedule",
    "SingularVectors",
    "Spaced",
    "Stage",
    "StagesFound",
    "Step",
    "TrackedRun",
    "add_family",
    "change",
    "change_singular_values",
    "change_stable_rank",
    "compare",
    "difference_singular_values",
    "effective_rank",
    "energy_rank",
    "find_stages",
    "find_steps",
    "frobenius_norm",
    "heads",
    "huggingface_callback",
    "leading_vectors",
    "lightning_callback",
    "linear",
    "load",
    "normalised_spectrum",
    "principal_angles",
    "rank_above",
    "singular_values",
    "stable_rank",
    "tensorboard",
    "trackio",
    "wandb",
]
