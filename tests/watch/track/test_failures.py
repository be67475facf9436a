"""What goes wrong around a tracker: training goes on, the record stays readable, the message has a remedy."""

import errno
import os
import sys
import threading
import types

import numpy
import pytest
import torch
from tiny_model import tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch import _staging as staging
from rankrise.watch import _tracker as tracker_module

EVERY = watch.Schedule(often=1, seldom=2)


def full_disk(monkeypatch, after):
    """From the `after`-th write on, only a part of a line fits."""
    real, calls = os.write, []

    def write(handle, data):
        calls.append(handle)
        if len(calls) > after:
            real(handle, data[: len(data) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data)

    monkeypatch.setattr(os, "write", write)
    return lambda: monkeypatch.setattr(os, "write", real)


def test_full_disk(tmp_path, monkeypatch, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        emptied = full_disk(monkeypatch, after=0)
        train(model, [3, 4], after=tracker.step)
        tracker.flush()
        emptied()
        train(model, [5], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.steps()["step"].tolist() == [1, 2, 5]
    assert run.measured.tolist() == [1, 2, 5]
    assert caplog.text.count("No space left on device") == 2  # once for losses, once for ranks
    assert "as soon as the folder can be written" in caplog.text
    assert run.info["left_out"] == {"writing a step": 2, "measuring": 2}
    assert not run.finished  # something is missing
    assert run.info["stopped"].startswith("measuring failed ([Errno 28] No space left on device)")


def test_a_real_limit_on_files(tmp_path, caplog, monkeypatch):
    """The system itself refuses to write more: training reaches its end, and every line is whole."""
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # what is imported now would be torn for good
    model, limits = tiny(), resource.getrlimit(resource.RLIMIT_FSIZE)
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(1, 100)) as tracker:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))
        try:
            losses = train(model, range(1, 41), after=lambda *now: (tracker.step(*now), tracker.wait()))
            tracker.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    run = watch.load(tmp_path)
    assert run.steps()["loss"].tolist() == losses
    assert 10 < len(run.measured) < 40
    assert run.measured[-1] == 40  # by close, when there was room again
    assert caplog.text.count("Tracking: measuring failed") == 1
    assert run.info["left_out"] == {"measuring": 41 - len(run.measured)}


def test_strict_raises_what_would_be_logged(tmp_path, monkeypatch):
    tracker = watch.RankTracker(tiny(), tmp_path, strict=True)
    full_disk(monkeypatch, after=0)
    with pytest.raises(OSError, match="No space left"):
        tracker.step(1, loss=1.0) or tracker.flush()
    monkeypatch.undo()
    tracker.close()


def test_a_folder_that_cannot_be_written(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    model = tiny()
    with watch.RankTracker(model, tmp_path / "file" / "run") as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
    assert "nothing of this run is recorded" in caplog.text
    assert "off: opening" in repr(tracker)
    assert "Not a directory" in repr(tracker)
    with pytest.raises(OSError, match="Not a directory"):
        watch.RankTracker(model, tmp_path / "file" / "run", strict=True)


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
    assert not caplog.records


def test_a_failing_measurement_is_told_once(tmp_path, monkeypatch, caplog):
    model = tiny()

    def fail(*_):
        raise RuntimeError("the decomposition did not converge")

    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1], after=tracker.step)
        tracker.flush()
        monkeypatch.setattr(tracker_module, "measure", fail)
        losses = train(model, [2, 3, 4], after=tracker.step)
        tracker.flush()
        monkeypatch.undo()
        train(model, [5], after=tracker.step)
    assert len(losses) == 3
    assert caplog.text.count("Tracking: measuring failed (RuntimeError: the decomposition") == 1
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 5]
    assert run.steps()["step"].tolist() == [1, 2, 3, 4, 5]
    assert not run.finished
    assert run.info["stopped"] == "measuring failed (the decomposition did not converge)" == tracker.lost


def test_a_layer_that_can_no_longer_be_read_keeps_the_run_unfinished(tmp_path, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        train(model, [1], after=tracker.step)
        model.layers[0].self_attn = torch.nn.Identity()
        tracker.step(2)
    run = watch.load(tmp_path)
    assert "Tracking: reading layers.0.self_attn failed" in caplog.text
    assert not run.finished
    assert run.info["stopped"].startswith("reading layers.0.self_attn failed")


def test_every_cause_is_told_once(tmp_path, monkeypatch, caplog):
    causes = iter(
        [
            RuntimeError("chunk 1 did not converge"),
            RuntimeError("chunk 22 did not converge"),
            ValueError("no such layer"),
            OSError(errno.EACCES, "Permission denied", ".step-abc"),
            OSError(errno.EACCES, "Permission denied", ".step-xyz"),
        ]
    )

    def fail(*_):
        raise next(causes)

    monkeypatch.setattr(tracker_module, "measure", fail)
    tracker = watch.RankTracker(tiny(), tmp_path, schedule=watch.Schedule(1, []))
    for step in range(5):
        tracker.step(step)
    tracker.close(finished=False)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 3
    for message, cause in zip(told, ("did not converge", "no such layer", "Permission denied"), strict=True):
        assert cause in message
    assert watch.load(tmp_path).info["left_out"] == {"measuring": 5}


def test_a_step_after_the_end(tmp_path, caplog):
    tracker = watch.RankTracker(tiny(), tmp_path)
    tracker.step(1, loss=1.0)
    tracker.close()
    for step in (2, 3):
        tracker.step(step, loss=1.0)
    assert caplog.text.count("is closed: call step before close") == 1
    assert watch.load(tmp_path).steps()["step"].tolist() == [1]
    assert "closed" in repr(tracker)


@pytest.mark.parametrize("step", [-1, 2.5, "two", True, 2**63])
def test_a_step_that_is_no_number(tmp_path, caplog, step):
    with watch.RankTracker(tiny(), tmp_path / "a") as tracker:
        tracker.step(4)
        tracker.step(step)
    assert f"step is {step!r}" in caplog.text
    assert watch.load(tmp_path / "a").measured.tolist() == [4]
    with (
        watch.RankTracker(tiny(), tmp_path / "b", strict=True) as tracker,
        pytest.raises(RankriseError, match="step is"),
    ):
        tracker.step(step)


def test_wrong_arguments_do_not_end_training(tmp_path, caplog):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        tracker.step(1, loss=torch.ones(3))
        tracker.step("two")
        tracker.step(3, loss=0.5)
    assert "loss is a tensor of shape [3]" in caplog.text
    assert watch.load(tmp_path).steps()["step"].tolist() == [1, 3]
    with (
        watch.RankTracker(tiny(), tmp_path / "other", strict=True) as tracker,
        pytest.raises(RankriseError, match="loss is 'low'"),
    ):
        tracker.step(1, loss="low")


def test_falling_behind(tmp_path, monkeypatch, caplog):
    """With the worker held up, full spectra are left out first, then whole measurements; losses never."""
    model, go_on = tiny(), threading.Event()
    real = tracker_module.measure

    def slow(*arguments):
        go_on.wait()
        return real(*arguments)

    monkeypatch.setattr(tracker_module, "measure", slow)
    monkeypatch.setattr(staging, "PLACES", 4)
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(1, 1)) as tracker:
        train(model, range(1, 8), after=tracker.step)
        go_on.set()
        tracker.flush()
        train(model, [8], after=tracker.step)
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [1, 2, 3, 4, 8]
    assert run.spectra_steps.tolist() == [1, 2, 8]
    assert run.steps()["step"].tolist() == list(range(1, 9))
    assert run.info["left_out"] == {"full spectra": 5, "measurements": 3}
    assert caplog.text.count("Tracking falls behind") == 2


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


def test_an_interrupt_passes(tmp_path, monkeypatch):
    tracker = watch.RankTracker(tiny(), tmp_path, schedule=EVERY)

    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(tracker._staging, "take", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tracker.step(1)
    tracker.close(finished=False)


def test_a_job_that_wants_to_end_the_thread(tmp_path, monkeypatch, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        with monkeypatch.context() as broken:
            broken.setattr(tracker_module, "measure", lambda *_: sys.exit(3))
            train(model, [1], after=tracker.step)
            tracker.flush()
        train(model, [2], after=tracker.step)
    assert "measuring failed (RuntimeError: SystemExit(3))" in caplog.text
    assert watch.load(tmp_path).measured.tolist() == [2]


@pytest.mark.parametrize("when", ["write", "close"])
@pytest.mark.parametrize("error", [ConnectionError("no network"), SystemExit("no network")])
def test_a_stream_that_fails(tmp_path, caplog, error, when):
    class Broken:
        def write(self, step, numbers):
            if when == "write":
                raise error

        def close(self):
            if when == "close":
                raise error

    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY, streams=[Broken()]) as tracker:
        train(model, [1, 2, 3], after=tracker.step)
    assert caplog.text.count("writing to Broken failed") == 1
    assert "no network" in caplog.text
    run = watch.load(tmp_path)
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3]
    assert run.finished


@pytest.mark.parametrize(
    "loss", [10**400, "low", 1j, torch.tensor(1j), torch.ones(3)], ids=lambda loss: type(loss).__name__
)
def test_a_loss_that_cannot_be_used_is_left_out_alone(tmp_path, caplog, loss):
    with watch.RankTracker(tiny(), tmp_path, schedule=EVERY) as tracker:
        tracker.step(1, loss=1)
        tracker.step(2, loss=loss, accuracy=0.5, time=7.0)
        tracker.step(3, loss=3)
    assert "recording loss failed" in caplog.text
    run = watch.load(tmp_path)
    assert [*run.steps()] == ["step", "time", "loss", "accuracy"]
    numpy.testing.assert_equal(run.steps()["loss"], [1, numpy.nan, 3])
    numpy.testing.assert_equal(run.steps()["accuracy"], [numpy.nan, 0.5, numpy.nan])
    assert run.steps()["time"][1] > 1e9, "the time itself"
    assert run.finished
    assert not tracker.lost
    assert [note.partition(" (")[0] for note in run.notes] == [
        "loss was left out at step 2",
        "time was left out at step 2",
    ]


def test_a_loss_that_is_not_finite_is_noted(tmp_path):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        for step, loss in enumerate([0.5, float("nan"), 0.25, float("inf")], start=1):
            tracker.step(step, loss=loss)
        tracker.step(5, accuracy=0.5)
    run = watch.load(tmp_path)
    assert run.finished
    assert run.notes == ["loss is not finite at 2 steps, first at step 2"]


@pytest.mark.parametrize("what", ["run", "run/steps.jsonl"])
def test_a_folder_or_a_file_that_is_moved_away(tmp_path, caplog, what):
    """Said once; training goes on, streams too; what was recorded stays as it is, unfinished."""
    model, seen = tiny(), []
    stream = types.SimpleNamespace(write=lambda step, _: seen.append(step), close=lambda: None)
    with watch.RankTracker(model, tmp_path / "run", schedule=EVERY, streams=[stream]) as tracker:
        train(model, [1, 2], after=tracker.step)
        tracker.flush()
        (tmp_path / what).rename(tmp_path / "moved")
        train(model, [3, 4], after=tracker.step)
        tracker.flush()
    assert [one for one in caplog.messages if f"{tmp_path / what} was moved" in one] == caplog.messages
    assert len(caplog.messages) == 1
    assert str(tmp_path / what) in tracker.lost
    assert {3, 4} <= {*seen}
    run = watch.load(tmp_path / ("moved" if what == "run" else "run"))
    assert run.measured.tolist() == [1, 2]
    assert not run.finished
    assert (tmp_path / "run").exists() == (what != "run")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_a_forked_copy_of_the_tracker_changes_nothing(tmp_path, caplog):
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
            os._exit(0 if "forked from" in caplog.text else 1)
    assert os.waitpid(worker, 0)[1] == 0
    assert (tmp_path / "run.json").read_text() == before
    train(model, [3, 4], after=tracker.step)
    tracker.close()
    run = watch.load(tmp_path)
    assert run.finished
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3, 4]
