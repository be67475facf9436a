"""What is told beside the tables of a truncation."""

from dataclasses import replace

import pytest
from rich.console import Console

from rankrise.show.truncation import notes, tables
from rankrise.use.types import GainCurve, Point, Truncation


def truncation(**initial: float) -> Truncation:
    """Curves of groups that begin at some losses, of a model whose loss fell from 2 to 1."""
    curves = [
        GainCurve(group, "plain", (), {"loss": loss}, full_rank=8, functional_rank=2)
        for group, loss in initial.items()
    ]
    return Truncation(base={"loss": 2.0}, trained={"loss": 1.0}, curves=tuple(curves))


def test_groups_that_gain_next_to_nothing_are_named() -> None:
    assert not any(
        "say little" in note for note in notes(truncation(all=2.0, q=1.02), "8 examples", 0.99, False)
    )
    *_, doubt, answer = notes(truncation(all=2.0, q=1.002, k=1.005, v=0.99), "8 examples", 0.99, False)
    assert doubt.startswith("*q, k: less than 1 % of the fall of the loss")
    assert answer == "Enough to keep 99 % of the gain: rank 2 for every matrix."


@pytest.mark.parametrize(("gains", "doubtful"), [((0.5, 0.995, 0.98), False), ((0.5, 1.4, 0.9), True)])
def test_a_functional_rank_above_which_less_is_kept_has_a_star(
    gains: tuple[float, ...], doubtful: bool
) -> None:
    points = tuple(
        Point("all", "plain", rank, 10 * rank, 1.0, {"loss": 1.0}, gain)
        for rank, gain in zip((1, 2, 4), gains, strict=True)
    )
    found = truncation(all=2.0)
    found = replace(found, curves=(replace(found.curves[0], points=points),))
    console = Console(width=100)
    with console.capture() as printed:
        console.print(tables(found, every_rank=True)[-1])
    assert ("2*" in printed.get()) == doubtful
    assert (
        any("all (plain): ranks above" in note for note in notes(found, "8 examples", 0.99, False))
        == doubtful
    )


def test_what_remains_at_each_rank_is_told_where_it_is_wanted() -> None:
    found = truncation(all=2.0)
    assert [table.title for table in tables(found, every_rank=False)] == ["Functional rank"]
    assert [table.title for table in tables(found, every_rank=True)] == ["What remains", "Functional rank"]
    assert any("pass --all" in note for note in notes(found, "8 examples", 0.99, every_rank=False))
    assert not any("--all" in note for note in notes(found, "8 examples", 0.99, every_rank=True))
