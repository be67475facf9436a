"""Train: the paper's transformers, as tracked runs in folders."""

from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.train._loop import Interrupted, Progress, train

__all__ = ["Interrupted", "Progress", "TrainSettings", "read_recipe", "train"]
