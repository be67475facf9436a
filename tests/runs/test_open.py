"""Opening runs: which folders stand for which; studies are told apart by data, scale, seed and science."""

from pathlib import Path

import pytest
from made_runs import tracked

from rankrise import RankriseError, runs, watch
from rankrise.toy import ToySettings, run_toy

SMALL = ToySettings(dimension=2, tokens=3, samples=20, alphas=("1e-4",), experiments=("stages", "flow"))


def test_a_folder_of_runs_stands_for_those_in_it_and_a_run_comes_once(tmp_path: Path) -> None:
    for seed in (0, 1):
        tracked(tmp_path / "sweep" / f"seed={seed}", seed=seed)
    run_toy(tmp_path / "toy", SMALL)
    opened = runs.open([tmp_path / "toy", tmp_path / "sweep", tmp_path / "sweep" / "seed=1"])
    assert [(type(run), run.name) for run in opened] == [
        (runs.ToyRun, "toy"),
        (runs.TrackedRun, "seed=0"),
        (runs.TrackedRun, "seed=1"),
    ]
    (same,) = runs.open(str(tmp_path / "sweep" / "seed=0"))
    assert type(same) is type(watch.load(same.folder))
    assert runs.by_kind(opened[1:]) == [opened[1:]]
    assert runs.by_kind(opened) == [opened[:1], opened[1:]]
    assert runs.by_kind(opened[::-1]) == [opened[:0:-1], opened[:1]]
    with pytest.raises(RankriseError, match="no run was passed"):
        runs.by_kind([])


def test_stages_are_searched_for_once(tmp_path: Path) -> None:
    run = watch.load(tracked(tmp_path, steps=400))
    found = runs.found_stages(run)
    assert found == watch.find_stages(run)
    assert [stage.interval[0] <= 200 <= stage.interval[1] for stage in found] == [True]
    assert runs.found_stages(run) is found


def test_runs_are_grouped_by_data_and_compared_where_their_science_is_alike(tmp_path: Path) -> None:
    asked = {
        "unit": {"seed": 0},
        "again": {"seed": 1, "workers": 9, "compile": "none"},  # computed otherwise, the same science
        "half": {"seed": 0, "initialisation_scale": 0.5},
        "longer": {"seed": 0, "epochs": 3},
        "other": {"seed": 0, "data": "cifar10"},
    }
    opened = [watch.load(tracked(tmp_path / name, **recipe)) for name, recipe in asked.items()]
    digits, cifar = runs.studies(opened)
    assert (digits.label, cifar.label, cifar.family) == ("digits", "CIFAR-10", "cifar10")
    assert [run.name for run in digits.members] == ["unit", "again", "half", "longer"]
    assert [run.name for run in digits.main] == ["unit", "again"]
    assert {scale: [run.name for run in same] for scale, same in digits.scales.items()} == {
        1.0: ["unit", "again"],
        0.5: ["half"],
    }


def test_a_title_names_the_model_of_a_text(tmp_path: Path) -> None:
    made = watch.load(tracked(tmp_path / "made", data="wikipedia"))
    gpt2 = watch.TrackedRun(made.folder, made.info | {"model": "GPT2LMHeadModel"})
    unknown = watch.TrackedRun(made.folder, gpt2.info | {"extra": {}})
    titles = [study.title for run in (made, gpt2, unknown) for study in runs.studies([run])]
    assert titles == ["Wikipedia", "GPT-2 on Wikipedia", "run made (GPT-2)"]


def test_runs_without_a_recipe_are_studies_of_their_own(tmp_path: Path) -> None:
    opened = [watch.load(tracked(tmp_path / name)) for name in ("mine", "yours")]
    assert [study.label for study in runs.studies(opened)] == ["mine", "yours"]
    assert (opened[0].scale, opened[0].seed, opened[0].data, opened[0].clock) == (1.0, 0, None, "step")
