"""What goes wrong around a tracker: training goes on, the record stays readable, the message has a remedy."""

import asyncio
import errno
import itertools
import os
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch
from tiny_model import tiny, train
from torch import nn

from rankrise import watch
from rankrise.foundations.errors import RankriseError
from rankrise.watch._track import jobs as jobs_module
from rankrise.watch._track import staging

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


def test_two_trackers_on_one_folder(tmp_path):
    model = tiny()
    first = watch.RankTracker(model, tmp_path)
    with pytest.raises(RankriseError, match="tracker of this process"):
        watch.RankTracker(model, tmp_path)
    first.close()
    holding = "import fcntl, sys; f = open(sys.argv[1], 'r+'); fcntl.lockf(f, fcntl.LOCK_EX); input('held')"
    command = [sys.executable, "-c", holding, str(tmp_path / ".lock")]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert other.stdout.read(4) == b"held"
    with pytest.raises(RankriseError, match="tracker of another process"):
        watch.RankTracker(model, tmp_path)
    other.kill()
    other.communicate()
    watch.RankTracker(model, tmp_path).close()


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
        monkeypatch.setattr(jobs_module, "measure", fail)
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

    monkeypatch.setattr(jobs_module, "measure", fail)
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


@pytest.mark.parametrize("step", [2**63, 10**5000], ids=["63 bits", "many"])
def test_a_step_beyond_64_bits(tmp_path, caplog, step):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        tracker.step(4)
        tracker.step(step)
        tracker.step(5)
    assert "step is more than 64 bits hold: pass a whole number" in caplog.text
    run = watch.load(tmp_path)
    assert run.measured.tolist() == [4, 5]
    assert run.info["finished"] is None
    assert "a step failed (step is more than 64 bits hold" in run.info["stopped"] == tracker.lost


def test_bytes_that_are_not_utf_8(tmp_path, monkeypatch):
    odd = b"caf\xe9".decode("utf-8", "surrogateescape")
    monkeypatch.setattr(sys, "argv", ["train.py", odd])
    with watch.RankTracker(tiny(), tmp_path, note=odd, extra={odd: odd}) as tracker:
        tracker.step(1, **{odd: 1.0})
    run = watch.load(tmp_path)
    assert (run.info["note"], run.extra[odd], run.steps()[odd].tolist()) == (odd, odd, [1.0])
    assert odd in run.info["command"]


@pytest.mark.parametrize("step", [-1, 2.5, "two", True])
def test_a_step_that_is_no_number(tmp_path, caplog, step):
    with watch.RankTracker(tiny(), tmp_path / "a") as tracker:
        tracker.step(4)
        tracker.step(step)
    assert f"step is {step!r}: pass a whole number of 0 or more" in caplog.text
    assert watch.load(tmp_path / "a").measured.tolist() == [4]
    with (
        watch.RankTracker(tiny(), tmp_path / "b", strict=True) as tracker,
        pytest.raises(RankriseError, match="pass a whole number of 0 or more"),
    ):
        tracker.step(step)


def test_wrong_arguments_do_not_end_training(tmp_path, caplog):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        tracker.step(1, loss=torch.ones(3))
        tracker.step("two")
        tracker.step(3, loss=0.5)
    assert "loss is a tensor of shape [3]: pass a number" in caplog.text
    assert watch.load(tmp_path).steps()["step"].tolist() == [1, 3]
    with (
        watch.RankTracker(tiny(), tmp_path / "other", strict=True) as tracker,
        pytest.raises(RankriseError, match="pass a number"),
    ):
        tracker.step(1, loss="low")


def test_falling_behind(tmp_path, monkeypatch, caplog):
    """With the worker held up, full spectra are left out first, then whole measurements; losses never."""
    model, go_on = tiny(), threading.Event()
    real = jobs_module.measure

    def slow(*arguments):
        go_on.wait()
        return real(*arguments)

    monkeypatch.setattr(jobs_module, "measure", slow)
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


def test_a_clock_that_jumps(tmp_path, monkeypatch):
    times = itertools.chain([100.0, 50.0, 1e12], itertools.repeat(-3.0))
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(often=[], seldom=[])) as tracker:
        monkeypatch.setattr(time, "time", lambda: next(times))
        for step in (1, 2, 3):
            tracker.step(step, loss=1.0)
        monkeypatch.undo()
    run = watch.load(tmp_path)
    assert run.steps()["step"].tolist() == [1, 2, 3]
    assert run.steps()["time"].tolist() == [100.0, 50.0, 1e12]


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


class Unprintable(Exception):
    def __str__(self):
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.parametrize("when", ["write", "close"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConnectionError("no network"), "no network"),
        (SystemExit("no network"), "no network"),
        (asyncio.CancelledError(), "CancelledError"),
        (GeneratorExit(), "GeneratorExit"),
        (Unprintable(), "Unprintable: which cannot be printed"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
def test_a_stream_that_fails(tmp_path, caplog, error, told, when):
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
    assert told in caplog.text
    run = watch.load(tmp_path)
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3]
    assert run.finished


def test_an_interrupt_within_a_stream_is_its_own(tmp_path, caplog):
    """The user's arrives in the main thread, and streams are written to in another."""

    class Interrupted:
        def write(self, step, numbers):
            raise KeyboardInterrupt

        def close(self):
            pass

    class Kept(Interrupted):
        def write(self, step, numbers):
            steps.add(step)

    steps = set()

    with watch.RankTracker(tiny(), tmp_path, streams=[Interrupted(), Kept()]) as tracker:
        for step in (1, 2):
            tracker.step(step, loss=1.0)
    assert caplog.text.count("writing to Interrupted failed") == 1
    assert steps == {1, 2}
    assert watch.load(tmp_path).finished


def test_a_job_that_wants_to_end_the_thread(tmp_path, monkeypatch, caplog):
    model = tiny()
    with watch.RankTracker(model, tmp_path, schedule=EVERY) as tracker:
        with monkeypatch.context() as broken:
            broken.setattr(jobs_module, "measure", lambda *_: sys.exit(3))
            train(model, [1], after=tracker.step)
            tracker.flush()
        train(model, [2], after=tracker.step)
    assert "measuring failed (RuntimeError: SystemExit(3))" in caplog.text
    assert watch.load(tmp_path).measured.tolist() == [2]
