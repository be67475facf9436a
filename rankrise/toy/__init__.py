"""Toy: the paper's experiments on small networks, as runs kept in folders."""

from rankrise.recipes.toy_settings import QUICK, ToySettings, read_recipe
from rankrise.toy.record import MissingPiece, PerturbedCurve, Run, open_run
from rankrise.toy.run import run_toy, work_of

__all__ = [
    "QUICK",
    "MissingPiece",
    "PerturbedCurve",
    "Run",
    "ToySettings",
    "open_run",
    "read_recipe",
    "run_toy",
    "work_of",
]
