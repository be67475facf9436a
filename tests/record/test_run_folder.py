"""The folder of a run: what is not one, one writer at a time, a folder that is moved, checkpoints."""

import os
import shutil
import signal
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch

from rankrise import RankriseError
from rankrise.record.folder import (
    MOMENTS,
    STATE,
    WEIGHTS,
    checkpoint_path,
    latest_checkpoint,
    read_run,
    read_tensors,
    verified_step,
    write_about,
    write_run,
    write_tensors,
)
from rankrise.record.lock import Lock, is_held
from rankrise.record.run import load

ABOUT = {
    "id": "one",
    "model": "Tiny",
    "settings": {"products": ["KQ"], "top": 3},
    "layers": [{"name": "a", "heads": 2, "tracked_heads": [0, 1], "d_model": 8, "d_head": 4}],
    "matrices": [],
    "extra": {"recipe": {"seed": 1, "initialisation_scale": 0.5}, "epoch_steps": 10},
    "finished": None,
}
FORKING = """
import os, sys, time
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


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_run(tmp_path, "tracked", ABOUT)
    assert read_run(tmp_path) == ABOUT | {"format": "rankrise-run/2", "kind": "tracked"}
    run = load(tmp_path)
    assert (run.seed, run.scale, run.epoch_steps, run.clock) == (1, 0.5, 10, "epoch")
    assert (run.data, run.finished) == (None, False)
    assert len(run.measured) == 0


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (None, "it has no run.json"),
        ('{"format": "rankrise-run/2", "kind": "toy"}', "toy run"),
        ('{"format": "another/1"}', "another/1"),
        ('{"format": "rankr', "damaged"),
        ("[]", "damaged"),
    ],
)
def test_what_is_not_a_run_is_named(tmp_path: Path, text: str | None, named: str) -> None:
    if text is not None:
        (tmp_path / "run.json").write_text(text)
    with pytest.raises(RankriseError, match=named):
        read_run(tmp_path, "tracked")
    with pytest.raises(RankriseError, match="does not exist"):
        read_run(tmp_path / "none", "tracked")


def taken_by_another(folder: Path) -> bool:
    """Whether another process gets the lock."""
    process = get_context("spawn").Process(target=Lock, args=(folder,))
    process.start()
    process.join()
    return process.exitcode == 0


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    lock = Lock(folder)
    with pytest.raises(RankriseError, match="being written by another tracker"):
        Lock(folder)
    shutil.copytree(folder, tmp_path / "backup")  # closing a file would drop a plain record lock
    assert not taken_by_another(folder)
    assert taken_by_another(tmp_path / "backup")
    assert is_held(folder) in (True, None)
    lock.release()
    assert taken_by_another(folder)
    assert is_held(folder) in (False, None)
    assert is_held(tmp_path) is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="workers are not forked here")
def test_forked_workers_do_not_hold_the_lock_of_a_killed_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as training:
        assert training.stdout is not None
        worker = int(training.stdout.readline())
        try:
            assert not taken_by_another(tmp_path)
            training.kill()
            training.wait()
            os.kill(worker, 0)  # it lives on
            assert taken_by_another(tmp_path)
        finally:
            os.kill(worker, signal.SIGKILL)


def test_tensors_come_back_as_copies_and_a_cut_file_is_named(tmp_path: Path) -> None:
    path, tensors = tmp_path / "a.safetensors", {"a": torch.rand(3).bfloat16(), "b": torch.rand(2, 2).mT}
    write_tensors(path, tensors, {"about": "x"})
    found, texts = read_tensors(path, "restore it")
    assert texts == {"about": "x"}
    path.write_bytes(path.read_bytes()[:-3])
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)
    with pytest.raises(RankriseError, match=r"a\.safetensors is damaged"):
        read_tensors(path, "restore it")


def checkpoint(folder: Path, step: int) -> Path:
    path = checkpoint_path(folder, step)
    path.mkdir(parents=True)
    for name in (WEIGHTS, MOMENTS, STATE):
        (path / name).write_text(name)
    write_about(path, folder, step)
    return path


def test_a_checkpoint_is_of_its_run_and_unchanged(tmp_path: Path) -> None:
    for name in ("run", "other"):
        write_run(tmp_path / name, "tracked", ABOUT | {"id": name})
    path = checkpoint(tmp_path / "run", 7)
    assert verified_step(path) == 7
    other = shutil.copytree(path, checkpoint_path(tmp_path / "other", 7))
    with pytest.raises(RankriseError, match="another run"):
        verified_step(other)
    (path / MOMENTS).write_text("changed")
    assert verified_step(path, [WEIGHTS]) == 7
    with pytest.raises(RankriseError, match=MOMENTS):
        verified_step(path)


def test_a_checkpoint_without_its_state_blocks_no_resume(tmp_path: Path) -> None:
    """A kill inside the removal of a checkpoint may leave a part of it."""
    write_run(tmp_path, "tracked", ABOUT)
    old, new = checkpoint(tmp_path, 7), checkpoint(tmp_path, 9)
    assert latest_checkpoint(tmp_path) == new
    (new / "state.json").unlink()
    assert latest_checkpoint(tmp_path) == old
