"""One writer at a time: the lock on the folder of a run, backups, forks and what is put in its place."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from tiny_model import tiny, train

from rankrise import watch
from rankrise.foundations.errors import RankriseError

EVERY = watch.Schedule(often=1, seldom=2)

TAKING = """
import sys
from pathlib import Path
from rankrise.record.lock import Lock
try:
    Lock(Path(sys.argv[1]))
except ValueError as error:
    raise SystemExit(str(error))
"""


def taken_by_another(folder):
    """What another process is told that wants to write the run."""
    return subprocess.run([sys.executable, "-c", TAKING, str(folder)], capture_output=True, text=True).stderr


def test_the_lock_outlives_a_backup(tmp_path):
    """Closing a file drops the record locks that a process has on it, whoever opened it."""
    folder = tmp_path / "run"
    with watch.RankTracker(tiny(), folder):
        shutil.copytree(folder, tmp_path / "backup")
        assert "tracker of another process" in taken_by_another(folder)
        assert not taken_by_another(tmp_path / "backup")
    assert not taken_by_another(folder)


def test_a_lock_that_is_removed_is_taken_again(tmp_path):
    with watch.RankTracker(tiny(), tmp_path) as tracker:
        (tmp_path / ".lock").unlink()
        tracker.step(1, loss=1.0)
        tracker.flush()
        assert "tracker of another process" in taken_by_another(tmp_path)
    assert watch.load(tmp_path).finished


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_forked_workers_do_not_hold_the_lock_of_a_killed_run(tmp_path):
    script = """
import os, signal, sys, time
from pathlib import Path
from rankrise.record.lock import Lock
lock = Lock(Path(sys.argv[1]))
worker = os.fork()
if worker == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print(worker, flush=True)
os.close(1)
time.sleep(60)
"""
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        worker = int(training.stdout.readline())
        try:
            assert "tracker of another process" in taken_by_another(tmp_path)
            training.kill()
            training.wait()
            os.kill(worker, 0)  # it lives on
            assert not taken_by_another(tmp_path)
        finally:
            os.kill(worker, signal.SIGKILL)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
@pytest.mark.parametrize("when", ["while it trains", "when it has ended"])
def test_a_forked_copy_of_the_tracker_changes_nothing(tmp_path, caplog, when):
    """A worker that leaves the tracker's context by an exception, or closes it, is not the run's end."""
    model, (waiting, telling) = tiny(), os.pipe()
    tracker = watch.RankTracker(model, tmp_path, schedule=EVERY)
    train(model, [1, 2], after=tracker.step)
    tracker.flush()
    before = (tmp_path / "run.json").read_text()
    worker = os.fork()
    if worker == 0:
        try:
            os.close(telling)
            os.read(waiting, 1)
            tracker.step(3, loss=1.0)
            tracker.flush()
            tracker.close()
        finally:
            os._exit(0 if "forked from: call step there" in caplog.text else 1)
    os.close(waiting)
    if when == "while it trains":
        os.close(telling)
        assert os.waitpid(worker, 0)[1] == 0
        assert (tmp_path / "run.json").read_text() == before
    train(model, [3, 4], after=tracker.step)
    tracker.close()
    if when == "when it has ended":
        os.close(telling)
        assert os.waitpid(worker, 0)[1] == 0
    run = watch.load(tmp_path)
    assert run.finished
    assert run.measured.tolist() == run.steps()["step"].tolist() == [1, 2, 3, 4]


def test_a_folder_in_place_of_the_lock_is_refused(tmp_path):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(
        RankriseError, match=r"\.lock is a folder, and the lock of a run is a file: remove it"
    ):
        watch.RankTracker(tiny(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
