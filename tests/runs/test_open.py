"""Opening runs: which folders stand for which, and that a file is read once and nothing is written."""

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
