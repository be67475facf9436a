"""Train: the paper's transformers, as tracked runs in folders."""

from rankrise.recipes.train_settings import TrainSettings, read_recipe
from rankrise.train._begun import Reached
from rankrise.train._loop import Interrupted, train

__all__ = ["Interrupted", "Reached", "TrainSettings", "read_recipe", "train"]
