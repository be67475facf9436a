"""Runs that differ from a base in one choice each: how they are told apart, and what a choice does."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
from made_runs import tracked

from rankrise import runs, watch
from rankrise.claims.heads import effects, learned

RECIPES = {
    "base": {"seed": 0},
    "base-again": {"seed": 1, "workers": 9, "measurements": 3},
    "biases": {"qkv_bias": False, "initialisation": "normal"},
    "longer": {"epochs": 900},
    "muon": {"optimiser": "muon", "momentum": 0.95},
    "sgd-high": {"optimiser": "sgd", "learning_rate": 0.1},
    "sgd-low": {"optimiser": "sgd", "learning_rate": 0.01},
    "unnoisy": {"label_noise": 0.2},
}


def grows(to: float) -> Callable[[int], float]:
    """A rank that grows from 2 at the first step to `to` at the last."""
    return lambda step: 2 * (to / 2) ** ((step - 1) / 19) if step else 0.0


@pytest.fixture
def opened(tmp_path: Path) -> list[watch.TrackedRun]:
    ends = {"sgd-high": 4.0, "sgd-low": 1.0, "base-again": 8.0}
    return [
        watch.load(tracked(tmp_path / name, rank=grows(ends.get(name, 8.0)), **recipe))
        for name, recipe in RECIPES.items()
    ]


def test_choices_are_told_by_what_differs_from_the_base(opened: list[watch.TrackedRun]) -> None:
    choices = runs.choices_of(runs.studies(opened)[0])
    assert {choice.label: [run.name for run in choice.runs] for choice in choices} == {
        "base": ["base", "base-again"],
        "label noise 0.2": ["unnoisy"],
        "no biases of q, k and v": ["biases"],  # a record that says nothing of its start began normal
        "Muon, rate 0.0001": ["muon"],
        "SGD, rate 0.01": ["sgd-low"],
        "SGD, rate 0.1": ["sgd-high"],
    }


def test_the_base_speaks_for_a_table_of_choices(opened: list[watch.TrackedRun]) -> None:
    (study,) = runs.studies(opened[::-1])
    assert [run.name for run in study.main] == ["base", "base-again"]


def test_what_a_choice_does_is_a_factor_over_training_and_one_against_the_base(
    opened: list[watch.TrackedRun],
) -> None:
    choices = {choice.label: choice for choice in runs.choices_of(runs.studies(opened)[0])}
    for label, end in (("base", 8.0), ("SGD, rate 0.1", 4.0), ("SGD, rate 0.01", 1.0)):
        found = effects(choices[label], choices["base"])
        places = [("KQ", None), ("KQ", 1), ("VO", None), ("VO", 1)]
        assert [(one.product, one.layer) for one in found] == places
        for one in found:  # heads and seeds are alike, so an interval has no width
            for estimate, exact in ((one.growth, end / 2), (one.final, end), (one.against_base, end / 8)):
                assert (estimate.low, estimate.value, estimate.high) == pytest.approx((exact,) * 3)
    score = learned(choices["base"].runs)
    assert score["loss"] == pytest.approx(1.0, rel=0.1)
    assert math.isnan(score["accuracy"])
