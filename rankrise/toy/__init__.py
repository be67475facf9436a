"""Toy: the paper's experiments on small networks, as runs kept in folders."""

from typing import TYPE_CHECKING

from rankrise.foundations.deprecation import moved
from rankrise.recipes.toy_settings import QUICK, ToySettings, read_recipe
from rankrise.toy.run import run_toy
from rankrise.toy.work import work_of

__all__ = ["QUICK", "ToySettings", "read_recipe", "run_toy", "work_of"]

if not TYPE_CHECKING:
    __getattr__ = moved(__name__, {"open_run": "rankrise.runs:open_toy"})
