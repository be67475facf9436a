"""Studies: runs on one data set, told apart by scale and seed, alike where their science is."""

from pathlib import Path

from made_runs import tracked

from rankrise import runs, watch


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
