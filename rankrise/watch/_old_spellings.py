"""Spellings from before a change was one value: each works for one version, and warns."""

import warnings

from torch import Tensor

from rankrise.watch._change import change
from rankrise.watch._factors import Matrix
from rankrise.watch._spectra import singular_values
from rankrise.watch._stable_rank import stable_rank

Pair = tuple[Matrix, Matrix]


def change_stable_rank(before: Pair, after: Pair, *, name: str = "") -> Tensor:
    """Now `stable_rank(change(before, after))`."""
    _warn("change_stable_rank", "stable_rank")
    return stable_rank(change(before, after), name=name)


def change_singular_values(before: Pair, after: Pair, *, name: str = "") -> Tensor:
    """Now `singular_values(change(before, after))`."""
    _warn("change_singular_values", "singular_values")
    return singular_values(change(before, after), name=name)


def difference_singular_values(before: Matrix, after: Matrix, *, name: str = "") -> Tensor:
    """Now `singular_values(change(before, after))`."""
    _warn("difference_singular_values", "singular_values")
    return singular_values(change(before, after), name=name)


def _warn(old: str, new: str) -> None:
    warnings.warn(
        f"watch.{old}(before, after) is now watch.{new}(watch.change(before, after)): the old name goes "
        "with the next version.",
        DeprecationWarning,
        stacklevel=3,
    )
