"""Toy: the paper's experiments on small networks, as runs kept in folders."""

from rankrise.recipes.toy_settings import ToySettings, read_recipe
from rankrise.toy.run import run_toy

__all__ = ["ToySettings", "read_recipe", "run_toy"]
