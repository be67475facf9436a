"""A run that is killed, resumed, rewound or confused with another one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_model import tiny, train

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.record.lines import read_lines

EVERY = watch.Schedule(often=1, seldom=2)
SCRIPT = Path(__file__).with_name("training_run.py")


def rows(folder, name):
    """The rows of a file without their times."""
    return [{key: value for key, value in row.items() if key != "time"} for row in read_lines(folder / name)]


def contents(folder):
    """The bytes of every file of a run."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_killed_many_times(tmp_path):
    """SIGKILL at random moments: at the end the record is that of a run that was never killed."""
    command = [sys.executable, str(SCRIPT), str(tmp_path), "14"]
    done = subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "14\n"
    whole, broken = tmp_path / "whole" / "run", tmp_path / "broken" / "run"
    for name in ("steps.jsonl", "ranks.jsonl"):
        assert rows(broken, name) == rows(whole, name)
    assert len(rows(whole, "steps.jsonl")) == len({row["step"] for row in rows(broken, "steps.jsonl")})
    files = {path.name: path.read_bytes() for path in (whole / "spectra").iterdir()}
    assert {path.name: path.read_bytes() for path in (broken / "spectra").iterdir()} == files
    assert not list(broken.glob(".*-*"))
    assert len(watch.load(broken).info["resumed"]) >= 7


def test_rerun_steps_replace_the_old_ones(tmp_path):
    model = tiny()
    tracker = watch.RankTracker(model, tmp_path, schedule=EVERY)
    train(model, range(1, 9), after=tracker.step)
    tracker.close(finished=False)
    before = watch.load(tmp_path)
    with watch.RankTracker(tiny(seed=9), tmp_path, schedule=EVERY, note="again") as tracker:
        tracker.step(5, loss=-1.0)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3, 4, 5]
    assert run.spectra_steps.tolist() == [2, 4, 5]
    assert run.stable_rank("KQ")[:4].tolist() == before.stable_rank("KQ")[:4].tolist()
    assert run.steps()["loss"][-1] == -1.0
    assert run.info["started"] == before.info["started"]
    assert run.info["note"] == "again"
    assert len(run.info["resumed"]) == 1


def test_training_that_goes_back_within_a_process(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        for step in (1, 2, 3, 4, 2, 3):
            tracker.step(step, loss=float(step))
    run = watch.load(tmp_path)
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3]
    assert len(rows(tmp_path, "steps.jsonl")) == 3


def test_a_step_that_starts_over_each_epoch(tmp_path, caplog):
    with watch.RankTracker(tiny(), tmp_path, schedule=watch.Schedule([1], [])) as tracker:
        for _ in range(3):
            for step in range(4):
                tracker.step(step, loss=1.0)
                tracker.step(step, accuracy=1.0)
    assert [("went back from 3 to 0: 9 rows" in one) for one in caplog.messages] == [True, True]


def test_restarted_from_the_beginning(tmp_path, caplog):
    """Of a run that was broken off, with the same initial weights the rows are replaced; other weights are
    another run."""
    for _ in range(2):
        model = tiny()
        tracker = watch.RankTracker(model, tmp_path, schedule=EVERY)
        train(model, [1, 2], after=tracker.step)
        tracker.close(finished=False)
        assert not caplog.records
    before = contents(tmp_path)
    for strict in (False, True):
        tracker = watch.RankTracker(tiny(seed=1), tmp_path, strict=strict)
        with pytest.raises(RankriseError, match="other initial weights"):
            tracker.step(1)
        assert "other initial weights" in tracker.lost
        tracker.step(2, loss=1.0)
        tracker.close()
        assert contents(tmp_path) == before


def test_a_finished_run_is_not_replaced_by_the_same_script_again(tmp_path, caplog):
    """From its first step on it is refused; from the middle on, what is dropped is told; or it is removed."""

    def run(steps, **settings):
        model = tiny()
        with watch.RankTracker(model, tmp_path, schedule=EVERY, **settings) as tracker:
            train(model, steps, after=tracker.step)

    run([1, 2, 3])
    before = contents(tmp_path)
    with pytest.raises(RankriseError, match=r"finished.* step 1 "):
        run([1, 2, 3])
    assert contents(tmp_path) == before
    assert not caplog.records
    run([3, 4])
    assert "step 3: 2 rows" in caplog.messages[-1]
    assert watch.load(tmp_path).measured.tolist() == [1, 2, 3, 4]
    run([1], overwrite=True)
    assert watch.load(tmp_path).measured.tolist() == [1]


def test_a_finished_run_is_not_changed_before_the_first_step(tmp_path, caplog):
    """Other weights are refused when the tracker is made; with the run's own, nothing changes yet."""
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY, note="mine") as tracker:
        train(model, [1, 2], after=tracker.step)
    before = contents(tmp_path)
    with pytest.raises(RankriseError, match="other initial weights"):
        watch.RankTracker(tiny(seed=1), tmp_path, note="another's")
    for own in (tiny(), model):
        watch.RankTracker(own, tmp_path, note="again").close()
        watch.RankTracker(own, tmp_path, note="again").close(finished=False)
    assert contents(tmp_path) == before
    assert not caplog.records


def test_a_finished_run_goes_on_from_its_last_weights(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
    tracker = watch.RankTracker(model, tmp_path, schedule=EVERY)
    train(model, [3], after=tracker.step)
    tracker.flush()
    assert not watch.load(tmp_path).finished
    tracker.close()
    run = watch.load(tmp_path)
    assert run.finished
    assert run.measured.tolist() == [1, 2, 3]


def test_overwrite_starts_over_and_says_so(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2, 3], after=tracker.step)
    (tmp_path / "notes.txt").write_text("mine")
    with watch.RankTracker(
        tiny(seed=1), tmp_path, schedule=watch.Schedule([5], []), overwrite=True
    ) as tracker:
        tracker.step(5, loss=1.0)
    (message,) = caplog.messages
    assert str(tmp_path) in message
    run = watch.load(tmp_path)
    assert run.measured.tolist() == run.steps()["step"].tolist() == run.spectra_steps.tolist() == [5]
    assert run.info["resumed"] == []
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_rows_whose_run_json_was_removed_are_not_dropped(tmp_path):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(1, loss=1.0)
    (tmp_path / "run.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(RankriseError, match=r"steps\.jsonl.*run\.json"):
        watch.RankTracker(tiny(), tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("step", [7, 3])
def test_a_damaged_row_is_named_before_anything_changes_unless_it_is_run_again(tmp_path, step):
    tracker = watch.RankTracker(tiny(), tmp_path, schedule=EVERY)
    for one in range(1, 9):
        tracker.step(one, loss=1.0)
    tracker.close(finished=False)
    ranks = tmp_path / "ranks.jsonl"
    rows = ranks.read_bytes().splitlines(keepends=True)
    ranks.write_bytes(b"".join([*rows[:4], b"[]\n", *rows[5:]]))
    before = contents(tmp_path)
    tracker = watch.RankTracker(tiny(), tmp_path, schedule=EVERY)
    if step == 3:
        tracker.step(step)
        tracker.close()
        assert watch.load(tmp_path).measured.tolist() == [1, 2, 3]
        return
    with pytest.raises(RankriseError, match=r"ranks\.jsonl is damaged in line 5"):
        tracker.step(step)
    tracker.close()
    assert contents(tmp_path) == before


def test_a_stray_file_among_spectra_does_not_stop_the_cut(tmp_path, caplog):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        for step in range(1, 7):
            tracker.step(step, loss=float(step))
    strays = [tmp_path / "spectra" / name for name in ("step-abc.safetensors", "step-5.safetensors", "a.txt")]
    for stray in strays:
        stray.write_text("stray")
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(4, loss=-4.0)
    run = watch.load(tmp_path)
    assert run.steps()["loss"].tolist() == [1.0, 2.0, 3.0, -4.0]
    assert run.measured.tolist() == [1, 2, 3, 4]
    assert run.spectra_steps.tolist() == [2, 4]
    assert all(stray.exists() for stray in strays)
    assert len(caplog.records) == 1  # that the finished run goes on


@pytest.mark.parametrize(
    ("sizes", "choice", "message"),
    [
        ({"depth": 3}, {}, r"name of layers.2.self_attn"),
        ({"width": 12}, {}, "d_model of layers.0.self_attn was 8 and is now 12"),
        ({"heads": 4}, {}, r"tracked_heads of layers.0.self_attn"),
        ({}, {"products": ["KQ"]}, "products"),
        ({}, {"matrices": ["head.weight"]}, "name of head.weight"),
    ],
)
def test_another_models_folder_is_refused(tmp_path, sizes, choice, message):
    watch.RankTracker(tiny(), tmp_path).close()
    before = (tmp_path / "run.json").read_text()
    with pytest.raises(RankriseError, match=message):
        watch.RankTracker(tiny(**sizes), tmp_path, **choice)
    assert (tmp_path / "run.json").read_text() == before
    watch.RankTracker(tiny(), tmp_path).close()  # the refused one let go of it


def test_initial_weights_are_verified(tmp_path):
    watch.RankTracker(tiny(), tmp_path).close()
    path = tmp_path / "initial.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        with pytest.raises(RankriseError, match=r"initial\.safetensors"):
            watch.RankTracker(tiny(), tmp_path)
        path.unlink(missing_ok=True)


def test_a_folder_of_something_else(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": "rankrise-run/2", "kind": "toy"}))
    with pytest.raises(RankriseError, match="toy run"):
        watch.RankTracker(tiny(), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "run.json"]
    with pytest.raises(RankriseError, match="toy run"):
        watch.load(tmp_path)


def test_what_a_killed_process_was_writing_is_removed(tmp_path):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(2)
    kept = {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}
    for name in (".tmpab12CD", "spectra/.tmpab12CD", "spectra/.step-0-x1.safetensors", ".run-x1.json"):
        (tmp_path / name).touch()
    watch.RankTracker(tiny(), tmp_path, schedule=EVERY).close()
    assert {path.relative_to(tmp_path) for path in tmp_path.rglob("*")} == kept


def test_resumed_with_other_settings(tmp_path):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY, top=2) as tracker:
        train(model, [1], after=tracker.step)
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(4, 4), top=3) as tracker:
        train(model, range(2, 6), after=tracker.step)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 4, 5]
    top = run.top("KQ")
    assert top.shape[-1] == 3
    assert torch.tensor(top).isnan().sum(-1).tolist()[0] == [[1, 1], [1, 1]]


def test_left_without_close(tmp_path):
    """The interpreter's end writes what is there, and leaves the run unfinished."""
    script = f"""
import sys; sys.path.insert(0, {str(SCRIPT.parent)!r})
from tiny_model import tiny, train
from rankrise import watch
model = tiny()
tracker = watch.RankTracker(model, {str(tmp_path)!r}, schedule=watch.Schedule(1, 1))
train(model, range(1, 20), after=tracker.step)
raise SystemExit(3)
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == 3
    run = watch.load(tmp_path)
    assert run.measured.tolist() == list(range(1, 20))
    assert run.info["finished"] is None


def test_an_exception_leaves_it_unfinished(tmp_path):
    def interrupted():
        with watch.RankTracker(tiny(), tmp_path) as tracker:
            tracker.step(1, loss=1.0)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    run = watch.load(tmp_path)
    assert run.steps()["loss"].tolist() == [1.0]
    assert run.info["finished"] is None
