"""Watch: every attention head's weights in one form, and the spectra and ranks of what they learned."""

from rankrise.watch.compare import Comparison, Row, compare
from rankrise.watch.factors import change
from rankrise.watch.families import Attention, add_family
from rankrise.watch.gram import frobenius_norm
from rankrise.watch.heads import Layer, heads
from rankrise.watch.projection import linear
from rankrise.watch.ranks import effective_rank, energy_rank, normalised_spectrum, rank_above
from rankrise.watch.spectra import change_singular_values, difference_singular_values, singular_values
from rankrise.watch.stable_rank import change_stable_rank, stable_rank
from rankrise.watch.stages import Curve, Stage, StagesFound, Step, find_stages, find_steps
from rankrise.watch.subspaces import SingularVectors, leading_vectors, principal_angles
from rankrise.watch.track.callbacks import huggingface_callback, lightning_callback
from rankrise.watch.track.load import TrackedRun, load
from rankrise.watch.track.schedule import Schedule, Spaced
from rankrise.watch.track.streams import tensorboard, trackio, wandb
from rankrise.watch.track.tracker import RankTracker

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
