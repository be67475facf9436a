"""Training on a disk that loses what was not synced: nothing that was relied on is lost."""

import os
import threading
from pathlib import Path

import pytest
from power_cut import Disk, once_per
from tiny_training import same_run

from rankrise import watch
from rankrise.foundations.files import write_json
from rankrise.record.names import checkpoint_path
from rankrise.train import TrainSettings, train
from rankrise.train import _loop as loop
from rankrise.train._checkpoint import latest_checkpoint

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="the test's disk needs Linux")


def test_the_disk_of_this_test_loses_what_is_not_synced(tmp_path: Path, monkeypatch) -> None:
    disk = Disk(monkeypatch)
    write_json(tmp_path / "run" / "kept.json", {})
    (tmp_path / "run" / "lost.json").write_text("{}")
    (tmp_path / "run" / "empty.json").write_text("{}")
    write_json(tmp_path / "run" / "kept too.json", {})
    (tmp_path / "run" / "kept.json").unlink()
    (tmp_path / "run" / "lost.json").unlink()
    disk.left_of(tmp_path / "run", tmp_path / "left")
    disk.close()
    left = {path.name: path.read_text() for path in (tmp_path / "left").iterdir()}
    assert left.pop("lost.json") == left.pop("empty.json") == ""
    assert left == {"kept.json": "{}\n", "kept too.json": "{}\n"}


def test_no_acknowledged_checkpoint_or_row_is_lost(
    tiny: TrainSettings, whole_run: Path, tmp_path: Path, monkeypatch
) -> None:
    """Power is cut at every sync, and after each checkpoint was saved; then the run goes on."""
    folder, disk = tmp_path / "run", Disk(monkeypatch)
    saved: list[int] = []
    cuts: list[tuple[int, Path]] = []

    def cut() -> None:
        if saved:
            cuts.append((saved[-1], tmp_path / f"left-{len(cuts)}"))
            disk.left_of(folder, cuts[-1][1])

    def sync(handle: int) -> None:
        with alone:
            cut()
            real(handle)

    real, alone = os.fsync, threading.Lock()
    monkeypatch.setattr(os, "fsync", sync)
    save = once_per(loop.save_checkpoint, after=lambda _, step, *others: (saved.append(step), cut()))
    monkeypatch.setattr(loop, "save_checkpoint", save)
    train(tiny, folder)
    cut()
    monkeypatch.undo()
    disk.close()

    assert saved == [8, 15, 22, 30]
    assert len(cuts) > 40
    for step, left in cuts:
        found = latest_checkpoint(left)
        assert found is not None
        assert found.name >= checkpoint_path(left, step).name
        run, whole = watch.load(left), watch.load(whole_run)
        for theirs, ours in ((run.measured, whole.measured), (run.steps()["step"], whole.steps()["step"])):
            assert theirs[theirs <= step].tolist() == ours[ours <= step].tolist()
        due = whole.spectra_steps[whole.spectra_steps <= step].tolist()
        assert set(due) <= {*run.spectra_steps.tolist(), 30}  # the end is measured after its checkpoint
        for one in run.spectra_steps:
            run.spectrum("KQ", int(one))
    unfinished = [left for step, left in cuts if step < 30]
    for left in unfinished[:: len(unfinished) // 3]:
        train(tiny, left)
        same_run(left, whole_run)
    assert watch.load(cuts[-1][1]).finished
