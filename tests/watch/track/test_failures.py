"""Whatever fails, training goes on: what is logged, what the record holds then, and what `strict` raises."""

import errno
import os
import threading
import types

import numpy
import pytest
import torch
from tiny_model import tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch import _measure as measuring
from rankrise.watch import _staging as staging

EVERY = watch.Schedule(often=1, seldom=2)


def full_disk(monkeypatch):
    """From now on only a part of a line fits; returns what empties the disk."""
    real = os.write

    def write(handle, data):
        real(handle, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write)
    return lambda: monkeypatch.setattr(os, "write", real)


def test_full_disk(tmp_path, monkeypatch, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        emptied = full_disk(monkeypatch)
        train(model, [3, 4], after=tracker.step)
        tracker.flush()
        emptied()
        train(model, [5], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.steps()["step"].tolist() == run.measured.tolist() == [1, 2, 5]
    assert caplog.text.count("No space left on device") == 2  # once for losses, once for ranks
    assert run.info["left_out"] == {"writing a step": 2, "measuring": 2}
    assert not run.finished  # something is missing
    assert "No space left on device" in run.info["stopped"]


def test_strict_raises_what_would_be_logged(tmp_path, monkeypatch):
    tracker = watch.RankTracker(tiny(), tmp_path / "run", strict=True)
    emptied = full_disk(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        tracker.step(1, loss=1.0) or tracker.flush()
    emptied()
    with pytest.raises(RankriseError, match="step is -1"):
        tracker.step(-1)
    with pytest.raises(ValueError, match="low"):
        tracker.step(1, loss="low")
    tracker.close()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory"):
        watch.RankTracker(tiny(), tmp_path / "file" / "run", strict=True)


def test_weights_that_are_not_finite(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY, matrices=["head.weight"]) as tracker:
        train(model, [1], after=tracker.step)
        with torch.no_grad():
            model.layers[0].self_attn.in_proj_weight[0, 0] = torch.nan  # the query of head 0
            model.head.weight[0, 0] = torch.inf
        tracker.step(2, loss=torch.nan)
        tracker.step(3, loss=torch.nan)
    run = watch.load(tmp_path)
    ranks = run.stable_rank("KQ")
    assert numpy.isnan(ranks[1:, 0, 0]).all()
    assert numpy.isfinite(ranks[1:, 0, 1]).all()
    assert numpy.isfinite(run.stable_rank("VO")).all()
    assert numpy.isnan(run.stable_rank("head.weight")[1:]).all()
    assert numpy.isnan(run.spectrum("KQ", 2)[0][0]).all()
    assert run.notes == [
        "loss is not finite at 2 steps, first at step 2",
        "ranks are nan from step 2 on, since weights are not finite",
    ]
    assert run.finished
    assert not caplog.records


def test_a_layer_that_vanishes(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1], after=tracker.step)
        model.layers[1] = nn.Identity()
        model.layers.append(tiny().layers[0])  # one that comes later is not followed
        train(model, [2, 3], after=tracker.step)
    run = watch.load(tmp_path)
    ranks = run.stable_rank("KQ")
    assert numpy.isfinite(ranks[:, 0]).all()
    assert numpy.isnan(ranks[1:, 1]).all()
    assert caplog.text.count("layers.1.self_attn is no longer a part of the model") == 1
    assert not run.finished


def test_falling_behind(tmp_path, monkeypatch, caplog):
    """With the worker held up, measurements are left out; losses never."""
    model, go_on = tiny(), threading.Event()
    real = measuring.measure

    def slow(*arguments):
        go_on.wait()
        return real(*arguments)

    monkeypatch.setattr(measuring, "measure", slow)
    monkeypatch.setattr(staging, "COPIES", 4)
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(1, 1)) as tracker:
        train(model, range(1, 8), after=tracker.step)
        go_on.set()
        tracker.flush()
        train(model, [8], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3, 4, 8]
    assert run.steps()["step"].tolist() == list(range(1, 9))
    assert run.info["left_out"] == {"measurements": 3}
    assert caplog.text.count("Tracking: falls behind") == 1


@pytest.mark.parametrize("loss", [10**400, "low", torch.ones(3)], ids=lambda one: type(one))
def test_a_loss_that_cannot_be_used_is_left_out_alone(tmp_path, caplog, loss):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(1, loss=1)
        tracker.step(2, loss=loss, accuracy=0.5, time=7.0)
        tracker.step(3, loss=3)
    assert "recording loss failed" in caplog.text
    run = watch.load(tmp_path)
    assert [*run.steps()] == ["step", "time", "loss", "accuracy"]
    numpy.testing.assert_equal(run.steps()["loss"], [1, numpy.nan, 3])
    assert run.steps()["time"][1] > 1e9, "the time itself"
    assert run.finished
    assert not tracker.lost
    assert run.info["left_out"] == {"recording loss": 1, "recording time": 1}


@pytest.mark.parametrize("what", ["run", "run/steps.jsonl"])
def test_a_folder_or_a_file_that_is_moved_away(tmp_path, caplog, what):
    """Logged once; training goes on, streams too; what was recorded stays as it is, unfinished."""
    model, seen = tiny(), []
    stream = types.SimpleNamespace(write=lambda step, _: seen.append(step), close=lambda: None)
    with watch.RankTracker(model, tmp_path / "run", schedule=EVERY, streams=[stream]) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        (tmp_path / what).rename(tmp_path / "moved")
        train(model, [3, 4], after=tracker.step)
        tracker.flush()
    (message,) = caplog.messages
    assert "was moved" in message
    assert "was moved" in tracker.lost
    assert {3, 4} <= {*seen}
    run = watch.load(tmp_path / ("moved" if what == "run" else "run"))
    assert run.measured.tolist()[:2] == [1, 2]
    assert not run.finished
    assert (tmp_path / "run").exists() == (what != "run")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_a_forked_copy_of_the_tracker_changes_nothing(tmp_path):
    """A worker that leaves the tracker's context by an exception, or closes it, is not the run's end."""
    model = tiny()
    tracker = watch.RankTracker(model, tmp_path, schedule=EVERY)
    train(model, [1, 2], after=tracker.step)
    tracker.flush()
    before = (tmp_path / "run.json").read_text()
    worker = os.fork()
    if worker == 0:
        try:
            tracker.step(3, loss=1.0)
            tracker.flush()
            tracker.close()
        finally:
            os._exit(0)
    assert os.waitpid(worker, 0)[1] == 0
    assert (tmp_path / "run.json").read_text() == before
    train(model, [3, 4], after=tracker.step)
    tracker.close()
    run = watch.load(tmp_path)
    assert run.finished
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3, 4]
