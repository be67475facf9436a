"""What is told beside the tables of a truncation."""

from types import SimpleNamespace
from typing import Any

from rankrise.show.truncation import notes


def truncation(**initial: float) -> Any:
    """Curves of groups that begin at some losses, of a model whose loss fell from 2 to 1."""
    curves = [SimpleNamespace(group=group, initial={"loss": loss}) for group, loss in initial.items()]
    return SimpleNamespace(base={"loss": 2.0}, trained={"loss": 1.0}, curves=curves)


def test_groups_that_gain_next_to_nothing_are_named() -> None:
    assert not any("say little" in note for note in notes(truncation(all=2.0, q=1.02), "8 examples"))
    told = notes(truncation(all=2.0, q=1.002, k=1.005, v=0.99), "8 examples")[-1]
    assert told.startswith("q, k: less than 1 % of the fall of the loss")
