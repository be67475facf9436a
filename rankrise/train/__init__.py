"""Train: the paper's transformers, as tracked runs in folders."""

from rankrise.train._loop import Interrupted, Progress, train
from rankrise.train._settings import TrainSettings, read_recipe

__all__ = ["Interrupted", "Progress", "TrainSettings", "read_recipe", "train"]
