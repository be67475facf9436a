"""Runs that are stopped, killed or led astray: what is kept, and how they go on."""

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_training import recipe_file, same_run, stop_at
from torch import Tensor

from rankrise import watch
from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.record.checkpoint import EARLIER
from rankrise.record.names import latest_checkpoint
from rankrise.show.terminal import snapshot
from rankrise.train import Interrupted, TrainSettings, _prepared, train
from rankrise.watch._track import jobs, staging


def test_a_run_stopped_twice_ends_as_one_that_was_not(tiny, whole_run, tmp_path):
    folder = tmp_path / "run"
    for step in (4, 20):
        with pytest.raises(Interrupted, match=f"SIGTERM at step {step}"):
            train(tiny, folder, progress=stop_at(step))
        assert latest_checkpoint(folder).name == f"step-{step:010d}"
        assert snapshot(watch.load(folder), None).state == f"not finished: stopped by SIGTERM at step {step}"
    reached = train(tiny, folder)
    assert "stopped" not in watch.load(folder).info
    assert reached.step == 30
    same_run(folder, whole_run)


def test_no_measurement_is_left_out_however_slow_it_is(tiny, tmp_path, monkeypatch):
    def slow(*arguments: object) -> object:
        time.sleep(0.1)
        return measure(*arguments)

    measure = jobs.measure
    monkeypatch.setattr(jobs, "measure", slow)
    monkeypatch.setattr(staging, "PLACES", 2)
    train(tiny, tmp_path / "run")
    run = watch.load(tmp_path / "run")
    due = run.info["settings"]["schedule"]
    assert run.measured.tolist() == sorted({*due["often"], *due["seldom"]})


def change_steps(monkeypatch: pytest.MonkeyPatch, change: Callable[[int, Tensor], Tensor]) -> None:
    """Let a function of the number of calls and the loss change what each step of training returns."""

    def changed(*arguments: object) -> object:
        step, calls = eager_step(*arguments), itertools.count(1)
        return lambda batch: change(next(calls), step(batch))

    eager_step = _prepared.eager_step
    monkeypatch.setattr(_prepared, "eager_step", changed)


def test_a_run_stopped_between_two_lines_of_the_record(tiny, whole_run, tmp_path, monkeypatch):
    def stop(calls: int, loss: Tensor) -> Tensor:
        if calls == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    change_steps(monkeypatch, stop)
    with pytest.raises(Interrupted, match="SIGINT at step 6"):
        train(tiny, tmp_path / "run")
    monkeypatch.undo()
    train(tiny, tmp_path / "run")
    same_run(tmp_path / "run", whole_run)


@pytest.mark.slow
def test_a_killed_run_resumes_from_its_checkpoint(tiny, whole_run, tmp_path):
    folder = tmp_path / "run"
    recipe = recipe_file(tiny, tmp_path / "recipe.yaml")
    command = [sys.executable, "-m", "rankrise", "train", str(recipe), "--run", str(folder)]
    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while latest_checkpoint(folder) is None and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.wait()
    assert latest_checkpoint(folder) is not None
    train(tiny, folder)
    same_run(folder, whole_run)


def test_a_finished_run_is_left_as_it_is(tiny, whole_run):
    before = {path: path.stat().st_mtime_ns for path in whole_run.rglob("*") if path.is_file()}
    reached = train(tiny, whole_run)
    assert reached.step == reached.total_steps == 30
    assert set(reached.metrics) == {"accuracy", "validation_loss"}
    assert {path: path.stat().st_mtime_ns for path in whole_run.rglob("*") if path.is_file()} == before


def test_other_settings_are_refused_by_name(tiny, whole_run, tmp_path):
    with pytest.raises(RankriseError, match=r"holds a run with seed 0, not 1: pass the same settings"):
        train(replace(tiny, seed=1, learning_rate=1.0), whole_run)
    older = tmp_path / "older"
    older.mkdir()
    info = json.loads((whole_run / "run.json").read_text())
    del info["extra"]["recipe"]["deterministic"]
    (older / "run.json").write_text(json.dumps(info))
    with pytest.raises(RankriseError, match="an earlier version, which had no setting 'deterministic'"):
        train(tiny, older)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(RankriseError, match="exists and is not a run"):
        train(tiny, tmp_path)


def test_a_loss_that_is_not_finite_stops_the_run_and_keeps_the_last_good_checkpoint(
    tiny: TrainSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    change_steps(monkeypatch, lambda calls, loss: loss * (float("nan") if calls >= 10 else 1.0))
    with pytest.raises(RankriseError, match="the loss is nan at step 10: lower learning_rate"):
        train(tiny, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run").name == "step-0000000008"


def test_a_checkpoint_that_was_being_written_does_not_count(tmp_path):
    unfinished = tmp_path / "checkpoint" / ".unfinished-abc"
    unfinished.mkdir(parents=True)
    (unfinished / "state.json").write_text("{}")
    assert latest_checkpoint(tmp_path) is None


def _flip_a_bit(checkpoint: Path) -> None:
    weights = checkpoint / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-9] ^= 1
    weights.write_bytes(data)


def _name_another_step(checkpoint: Path) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps(state | {"step": 3}))


def _cut(checkpoint: Path, sums: bool) -> None:
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    if not sums:  # as earlier versions wrote it
        (checkpoint / "state.json").write_text(json.dumps({"format": EARLIER, "step": 4}))


def _say(checkpoint: Path, **values: object) -> None:
    path = checkpoint / "state.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def _lose_the_sums(checkpoint: Path, file: str = "") -> None:
    path = checkpoint / "state.json"
    about = json.loads(path.read_text())
    if file:
        del about["sha256"][file]
    else:
        del about["sha256"]
    path.write_text(json.dumps(about))


def _lose_a_tensor(file: str, checkpoint: Path) -> None:
    """As a checkpoint of an earlier version, which has no sums to tell by."""
    (checkpoint / "state.json").write_text(json.dumps({"format": EARLIER, "step": 4}))
    tensors = load_file(checkpoint / file)
    tensors.pop(next(iter(tensors)))
    save_file(tensors, checkpoint / file)


def _change_a_tensor(
    checkpoint: Path, file: str, changed: Callable[[Tensor], Tensor], ending: str = ""
) -> None:
    """As in a checkpoint of an earlier version, too."""
    (checkpoint / "state.json").write_text(json.dumps({"format": EARLIER, "step": 4}))
    tensors = load_file(checkpoint / file)
    name = next(name for name in tensors if name.endswith(ending))
    save_file(tensors | {name: changed(tensors[name])}, checkpoint / file)


_change_the_type = partial(_change_a_tensor, changed=lambda tensor: tensor.to(torch.complex64))
_turn_a_step = partial(_change_a_tensor, file="optimiser.safetensors", changed=torch.neg, ending="/step")


def _go_beyond_the_end(checkpoint: Path) -> None:
    _say(checkpoint, step=99)
    checkpoint.rename(checkpoint.with_name("step-0000000099"))


def _lose_a_row(file: str, checkpoint: Path) -> None:
    path = checkpoint.parent.parent / file
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def test_a_damaged_checkpoint_is_named(tiny, tmp_path, capsys):
    """Nothing is trained from it, and the run stays as it is."""
    with pytest.raises(Interrupted):
        train(tiny, tmp_path / "run", progress=stop_at(4))
    recipe = recipe_file(tiny, tmp_path / "recipe.yaml")
    for number, (damage, message) in enumerate(
        [
            (_flip_a_bit, "has model.safetensors, which has changed since it was written: restore it"),
            (_name_another_step, "says in state.json that it is of step 3: restore it"),
            (partial(_cut, sums=True), "has model.safetensors, which has changed"),
            (partial(_cut, sums=False), "cannot be read"),
            (lambda one: (one / "state.json").write_text("[" * 100_000), "state.json is damaged"),
            (lambda one: (one / "optimiser.safetensors").unlink(), "cannot be read"),
            (lambda one: (one / "state.json").unlink(), "state.json is damaged ([Errno 2] No such file"),
            (
                partial(_say, sha256={}),
                "has model.safetensors, whose checksum is not in state.json: restore",
            ),
            (partial(_say, sha256=None), "has model.safetensors, whose checksum is not in state.json"),
            (_lose_the_sums, "has model.safetensors, whose checksum is not in state.json"),
            (partial(_lose_the_sums, file="state.safetensors"), "has state.safetensors, whose checksum is"),
            (partial(_say, format=EARLIER, sha256={}), "has model.safetensors, whose checksum is not in"),
            (partial(_say, format="another"), "has a state.json that is damaged"),
            (partial(_lose_a_tensor, "model.safetensors"), "has model.safetensors of another network"),
            (partial(_lose_a_tensor, "optimiser.safetensors"), "has optimiser.safetensors of another"),
            (partial(_lose_a_tensor, "state.safetensors"), "has state.safetensors of another network"),
            (partial(_change_the_type, file="model.safetensors"), "is torch.complex64 ["),
            (partial(_change_the_type, file="optimiser.safetensors"), "is torch.complex64 ["),
            (partial(_change_the_type, file="state.safetensors"), "is torch.complex64 ["),
            (_turn_a_step, "has optimiser.safetensors of another step ("),
            (_go_beyond_the_end, "has a checkpoint of step 99 of 30: restore it, or remove"),
            (partial(_lose_a_row, "steps.jsonl"), "steps.jsonl lacks step"),
            (partial(_lose_a_row, "ranks.jsonl"), "ranks.jsonl lacks step"),
        ]
    ):
        run = tmp_path / f"run-{number}"
        shutil.copytree(tmp_path / "run", run)
        damage(latest_checkpoint(run))
        rows = (run / "steps.jsonl").read_bytes()
        with pytest.raises(SystemExit, match="2"):
            main(["train", str(recipe), "--run", str(run)])
        assert message in capsys.readouterr().err
        assert (run / "steps.jsonl").read_bytes() == rows
        assert not watch.load(run).finished


@pytest.mark.parametrize(
    "words",
    [["compare", "run", "run"], ["extract", "run", "--out", "new"], ["truncate", "run"]],
)
def test_no_command_uses_weights_that_have_changed(whole_run, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(whole_run, "run")
    _flip_a_bit(latest_checkpoint("run"))
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert "has model.safetensors, which has changed since it was written" in capsys.readouterr().err
    assert not Path("new").exists()


def test_a_run_that_only_says_that_it_is_finished(tiny, tmp_path, capsys):
    with pytest.raises(Interrupted):
        train(tiny, tmp_path / "run", progress=stop_at(4))
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"finished": "today"}))
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(recipe_file(tiny, tmp_path / "r.yaml")), "--run", str(tmp_path / "run")])
    assert "does not tell how" in capsys.readouterr().err


def test_a_checkpoint_of_an_earlier_version_is_read_and_announced(tiny, whole_run, tmp_path, caplog):
    with pytest.raises(Interrupted):
        train(tiny, tmp_path / "run", progress=stop_at(4))
    state = latest_checkpoint(tmp_path / "run") / "state.json"
    kept = json.loads(state.read_text())
    assert set(kept.pop("sha256")) == {"model.safetensors", "optimiser.safetensors", "state.safetensors"}
    state.write_text(json.dumps(kept | {"format": EARLIER}))
    train(tiny, tmp_path / "run")
    assert f"{state.parent} is of an earlier version, without checksums" in caplog.text
    same_run(tmp_path / "run", whole_run)


def test_a_run_that_cannot_be_recorded_is_not_trained(tiny, tmp_path, capsys):
    recipe, run = recipe_file(tiny, tmp_path / "recipe.yaml"), tmp_path / "run"
    (run / ".lock").mkdir(parents=True)
    with pytest.raises(SystemExit, match="2"):
        main(["train", str(recipe), "--run", str(run)])
    assert ".lock is a folder, and the lock of a run is a file: remove it." in capsys.readouterr().err
    assert [path.name for path in run.iterdir()] == [".lock"]


def test_rows_that_are_lost_stop_the_run_before_the_next_checkpoint(tiny, whole_run, tmp_path, monkeypatch):
    def full(handle: int, data: bytes) -> int:
        if data.startswith(b'{"step":12,'):
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RankriseError, match=r"could not be recorded .*No space left on device"):
            train(tiny, tmp_path / "run")
    assert latest_checkpoint(tmp_path / "run").name == "step-0000000008"
    assert not watch.load(tmp_path / "run").finished
    train(tiny, tmp_path / "run")
    same_run(tmp_path / "run", whole_run)
