"""Toy: the paper's experiments on small networks, as runs kept in folders."""

from rankrise.recipes.toy_settings import QUICK, ToySettings, read_recipe
from rankrise.runs import open_toy as open_run
from rankrise.toy.run import run_toy
from rankrise.toy.work import work_of

__all__ = [
    "QUICK",
    "ToySettings",
    "open_run",
    "read_recipe",
    "run_toy",
    "work_of",
]
