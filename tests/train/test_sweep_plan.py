"""Which runs a sweep plans, and what it refuses before anything starts."""

from pathlib import Path

import pytest

from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.recipes.train_settings import TrainSettings
from rankrise.train.sweep import plan, plan_choices, read_sets


def test_names_tell_values_of_every_kind_apart() -> None:
    sets = read_sets(["spectra_epochs=1,2;0.5", "data_name=a/b,c", "cuda_graph=yes,no", "learning_rate=1e-5"])
    runs = plan(TrainSettings(), sets, 1).runs
    assert len({run.name for run in runs}) == 8
    assert runs[0].name == "spectra_epochs=1+2,data_name=a-b,cuda_graph=True,seed=0"
    assert runs[-1].settings.spectra_epochs == (0.5,)
    assert runs[-1].settings.cuda_graph is False
    assert {run.settings.learning_rate for run in runs} == {1e-5}


def test_values_that_are_good_only_together_are_accepted() -> None:
    runs = plan(TrainSettings(), {"image_size": [9], "patch_size": [3]}, 1).runs
    assert (runs[0].settings.image_size, runs[0].settings.patch_size) == (9, 3)


@pytest.mark.parametrize(
    ("sets", "seeds", "words"),
    [
        ({"seed": [1, 2]}, 1, "pass the seeds as seeds"),
        ({"layers": []}, 1, "no value for layers"),
        ({"learning_rate": ["1e-3", "0.001"]}, 1, "would be learning_rate=0.001,seed=0"),
        ({}, [2, 2], "would be seed=2"),
        ({}, 0, "no seed"),
        ({}, [-1], "seed is -1"),
    ],
)
def test_plans_that_make_no_sense_are_refused(
    sets: dict[str, list[object]], seeds: int | list[int], words: str
) -> None:
    with pytest.raises(RankriseError, match=words):
        plan(TrainSettings(), sets, seeds)


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"../base": {}}, "a choice is called '../base', which cannot name a folder"),
        ({".base": {}}, "a choice is called '.base'"),
        ({"base": {"layer": 2}}, "the choice base gives 'layer', which is not a setting"),
        ({"base": {"layers": 0}}, "layers is 0"),
    ],
)
def test_choices_that_make_no_sense_are_refused(choices: dict[str, dict[str, object]], words: str) -> None:
    with pytest.raises(RankriseError, match=words):
        plan_choices(TrainSettings(), choices)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "layer=1,2"], "'layer', which is not a setting"),
        (["--set", "layers=1,two"], "layers as 'two'"),
        (["--set", "layers=1,0"], "layers is 0"),
        (["--set", "layers"], "SETTING=VALUE"),
        (["--set", "layers=1", "--set", "layers=2"], "layers twice"),
        (["--seeds", "many"], "--seeds is 'many'"),
        (["--seeds", "1000000000"], "the sweep has 1,000,000,000 runs: pass values and seeds for at most"),
        (["--seeds", "9999", "--set", "layers=1,2"], "the sweep has 19,998 runs"),
        (["--seeds", "0"], "no seed"),
        (["--workers", "0"], "workers is 0"),
        (
            ["--only", "bias"],
            "--only names 'bias', which is not a choice of the recipe: did you mean bia",
        ),
        (
            ["--only", ","],
            "--only names ',', which is not a choice of the recipe: pass some of ba",
        ),
        (["--only", "base", "--seeds", "2"], "leave out --only, or the other two"),
        (["--dask", "local", "--slurm", "partition=gpu"], "pass one of them"),
        (["--slurm", "partition=gpu", "--workers", "2"], "leave it out"),
        (["--slurm", "partition"], "name=value"),
        (["--slurm", "nodes=2"], "one task on one node"),
        (["--slurm", "cluster=local,colour=red"], "colour"),
        (["--dask", "carrier-pigeon://here"], "no Dask scheduler answers"),
    ],
)
def test_bad_input_is_one_sentence_and_starts_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("data: digits\nchoices: {base: , biases: {qkv_bias: yes}}\n")
    with pytest.raises(SystemExit) as ending:
        main(["sweep", str(recipe), "--run", str(tmp_path / "new"), *arguments])
    assert ending.value.code == 2
    errors = capsys.readouterr().err
    assert words in errors
    assert len(errors.splitlines()) == 1
    assert not (tmp_path / "new" / "sweep.json").exists()
