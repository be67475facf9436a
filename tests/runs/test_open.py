"""Opening runs: which folders stand for which, and that a file is read once and nothing is written."""

import json
import re
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from made_runs import everything_in, tracked
from tracked_runs import write_rows

from rankrise import RankriseError, runs, watch
from rankrise.record.lines import read_lines
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


def test_runs_further_down_are_named(tmp_path: Path) -> None:
    tracked(tmp_path / "all" / "sweep" / "seed=0", seed=0)
    with pytest.raises(RankriseError, match=r"hold some \(sweep/seed=0\): pass these, or '.*sweep'"):
        runs.open(tmp_path / "all")


def test_each_file_is_read_once_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracked(tmp_path / "tracked", seed=1)
    run_toy(tmp_path / "toy", SMALL)
    before = everything_in(tmp_path)
    read: Counter[str] = Counter()
    for module, function in (
        ("rankrise.watch._track.load", "read_lines"),
        ("rankrise.runs.toy.run", "read_json"),
        ("rankrise.runs.toy.run", "read_tensors"),
        ("rankrise.record.run_file", "read_json"),
    ):
        _counted(monkeypatch, f"{module}.{function}", read)
    toy, run = runs.open([tmp_path / "toy", tmp_path / "tracked"])
    assert isinstance(toy, runs.ToyRun)
    assert isinstance(run, runs.TrackedRun)
    for _ in range(2):
        (
            run.steps(),
            run.ranks,
            run.top("KQ"),
            run.last_step,
            runs.found_stages(run),
            runs.studies([run])[0].main,
        )
        toy.labels(0), toy.stages(0), toy.flow(0, "1e-4"), toy.derived(0, "comparison"), toy.missing
    assert sorted(read) == [
        "comparison.json", "flow-1e-4.safetensors", "ranks.jsonl", "run.json", "stages.json",
        "stages.safetensors", "steps.jsonl",
    ]  # fmt: skip
    assert read.pop("run.json") == 2  # one per run
    assert set(read.values()) == {1}
    assert everything_in(tmp_path) == before


def test_the_caller_s_copy_of_the_steps_is_not_the_run_s(tmp_path: Path) -> None:
    run = watch.load(tracked(tmp_path))
    del run.steps()["loss"]
    assert "loss" in run.steps()


def test_what_is_not_recorded_says_so(tmp_path: Path) -> None:
    run_toy(tmp_path / "toy", SMALL)
    (toy,) = runs.open(tmp_path / "toy")
    assert isinstance(toy, runs.ToyRun)
    with pytest.raises(runs.NotRecorded, match=r"full\.safetensors is not there"):
        toy.full(0)
    run = watch.load(tracked(tmp_path / "tracked"))
    with pytest.raises(runs.NotRecorded, match="no full spectra of step 3"):
        run.spectrum("KQ", 3)


def test_a_row_that_lacks_what_is_tracked_is_damaged(tmp_path: Path) -> None:
    path = tracked(tmp_path) / "ranks.jsonl"
    rows = read_lines(path)
    for row in ({}, {"KQ": 3}, {"KQ": {"stable_rank": [["x"]]}}):
        write_rows(path, [*rows, {"step": 21, **row}])
        with pytest.raises(RankriseError, match=r"ranks\.jsonl is damaged"):
            watch.load(tmp_path).stable_rank("KQ")


def test_a_row_that_is_nested_too_deep_is_damaged(tmp_path: Path) -> None:
    path = tracked(tmp_path) / "ranks.jsonl"
    text = f'{{"step":21,"KQ":{{"top":{"[" * 900}{"]" * 900}}}'
    with path.open("a") as file:
        file.write(f'{text},"crc32":"{zlib.crc32(text.encode()):08x}"}}\n')
    with pytest.raises(RankriseError, match=r"ranks\.jsonl is damaged"):
        watch.load(tmp_path).top("KQ")


def test_spectra_of_a_step_that_no_record_has_are_not_counted(tmp_path: Path) -> None:
    (tracked(tmp_path) / "spectra").mkdir(exist_ok=True)
    for step in (2**63 - 1, 2**63, 10**30):
        (tmp_path / "spectra" / f"step-{step}.safetensors").touch()
    assert watch.load(tmp_path).spectra_steps.tolist() == [2**63 - 1]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1" + 400 * "0", "true", '"1"', '"<script>"', "[1]"])
@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("initialisation_scale", "scale"),
        ("seed", "seed"),
        ("batch_size", "batch_size"),
        ("warm_up_epochs", "warm_up_steps"),
    ],
)
def test_a_setting_that_is_not_a_number_is_refused(tmp_path: Path, name: str, of: str, value: str) -> None:
    path = tracked(tmp_path, **{name: 1}) / "run.json"
    path.write_text(re.sub(rf'"{name}": [^,\n]*', f'"{name}": {value}', path.read_text()))
    with pytest.raises(RankriseError, match=f"has {name} .* in its extra: record a number"):
        getattr(watch.load(tmp_path), of)


@pytest.mark.parametrize(
    ("left", "said"), [("one text", ["one text"]), ([1, "two"], ["1", "two"]), (None, []), (3, ["3"])]
)
def test_a_maker_may_leave_notes_of_any_kind(tmp_path: Path, left: object, said: list[str]) -> None:
    path = tracked(tmp_path) / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"extra": {"notes": left}}))
    assert watch.load(tmp_path).notes == said
    assert repr(watch.load(tmp_path))


def test_leading_values_are_as_many_as_were_recorded(tmp_path: Path) -> None:
    """Of a run that was asked for all of them, whatever number stands for all."""
    path = tracked(tmp_path) / "run.json"
    path.write_text(path.read_text().replace('"top": 1', '"top": 2147483647'))
    run = watch.load(tmp_path)
    assert run.info["settings"]["top"] == 2147483647
    assert run.top("KQ").tolist() == [[[[float(step)]] * 2] for step in range(21)]


def test_a_number_beyond_all_bounds_is_infinite(tmp_path: Path) -> None:
    tracked(tmp_path, rank=lambda step: 1e300 if step == 7 else 1.0)
    run = watch.load(tmp_path)
    assert run.stable_rank("KQ")[6:9, 0, 0].tolist() == [1.0, float("inf"), 1.0]
    assert 7 not in run.finite_steps


GOOD = {"group": "KQ", "method": "plain", "full_rank": 4, "functional_rank": None}


@pytest.mark.parametrize(
    "curve",
    [3, {}, GOOD, GOOD | {"points": [{"rank": 1}]}, GOOD | {"points": [{"rank": 1, "gain": "all"}]},
     GOOD | {"points": [], "functional_rank": "nan"}, GOOD | {"points": [], "group": None}],
)  # fmt: skip
def test_curves_of_a_truncation_that_are_damaged_are_refused(tmp_path: Path, curve: object) -> None:
    path = tracked(tmp_path) / "truncation.json"
    path.write_text(json.dumps({"curves": [GOOD | {"points": [{"rank": 1, "gain": None}]}]}))
    assert watch.load(tmp_path).truncation is not None
    path.write_text(json.dumps({"curves": [curve]}))
    with pytest.raises(RankriseError, match=r"truncation\.json is damaged .*: delete it, and measure again"):
        watch.load(tmp_path).truncation  # noqa: B018


def _counted(monkeypatch: pytest.MonkeyPatch, name: str, read: Counter[str]) -> None:
    module, _, function = name.rpartition(".")
    original = getattr(__import__(module, fromlist=[function]), function)

    def counting(path: Path, *arguments: Any) -> Any:
        read[path.name] += 1
        return original(path, *arguments)

    monkeypatch.setattr(name, counting)
