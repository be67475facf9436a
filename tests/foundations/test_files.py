"""Files: what is written comes back, and what a killed process was writing goes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from rankrise.foundations import files
from rankrise.foundations.files import (
    MACHINE,
    make_folder,
    read_json,
    replacing,
    whole_folder,
    write_json,
    write_text,
)
from rankrise.record.tensors import save


def test_a_text_that_is_not_utf_8_is_kept(tmp_path: Path) -> None:
    note = b"ranks \xff of \xc3\xa9tudes".decode("utf-8", "surrogateescape")
    write_json(tmp_path / "run.json", {"note": note})
    assert read_json(tmp_path / "run.json") == {"note": note}


def test_what_a_killed_process_was_writing_is_removed_by_the_next(tmp_path: Path) -> None:
    script = "import os, sys\nfrom rankrise.foundations.files import replacing\n"
    script += "with replacing(sys.argv[1]) as path: path.write_text('half'); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", script, str(tmp_path / "report.html")]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    write_text(tmp_path / "other.csv", "1")
    assert [path.name for path in tmp_path.iterdir()] == ["other.csv"]


def test_a_folder_that_a_killed_process_was_filling_is_removed_by_the_next(tmp_path: Path) -> None:
    script = "import os, sys\nfrom pathlib import Path\nfrom rankrise.foundations.files import whole_folder\n"
    script += "with whole_folder(Path(sys.argv[1])) as path: (path / 'a').touch(); os.kill(os.getpid(), 9)"
    command = [sys.executable, "-c", script, str(tmp_path / "adapter")]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with whole_folder(tmp_path / "other") as temporary:
        (temporary / "a").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


@pytest.mark.parametrize("process", ["9" * 9, "9" * 10, "9" * 100, "0"])
def test_a_temporary_name_with_the_number_of_no_process(tmp_path: Path, process: str) -> None:
    (tmp_path / f".report-{MACHINE}-{process}-abcd_123.html").touch()
    write_text(tmp_path / "report.html", "1")
    assert (tmp_path / "report.html").read_text() == "1"


@pytest.mark.skipif(os.name == "nt", reason="there are no rights to mask")
def test_files_have_the_rights_that_the_user_masks(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "page.html", "1")
        with whole_folder(tmp_path / "adapter") as folder:
            save(folder / "weights.safetensors", {"a": torch.zeros(1)})
    finally:
        os.umask(before)
    rights = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert rights == {"page.html": 0o640, "adapter": 0o750, "weights.safetensors": 0o640}


def test_the_mask_of_a_process_is_left_alone(tmp_path: Path, monkeypatch) -> None:
    """It is the process's: another thread would make its files meanwhile with all rights."""
    monkeypatch.setattr(os, "umask", lambda _: pytest.fail("the mask is changed"))
    write_text(tmp_path / "page.html", "1")


def test_what_others_are_writing_stays(tmp_path: Path) -> None:
    living = tmp_path / f".report-{MACHINE}-{os.getpid()}-abcd_123.html"
    elsewhere = tmp_path / ".report-000000-1-abcd_123.html"
    mine = tmp_path / ".report-of-mine.html"
    old = tmp_path / ".figure-000000-2-abcd_123.png"
    for path in (living, elsewhere, mine, old):
        path.touch()
    os.utime(old, (time.time() - 90_000,) * 2)
    write_text(tmp_path / "report.html", "1")
    assert set(tmp_path.iterdir()) == {living, elsewhere, mine, tmp_path / "report.html"}


def test_a_file_is_synced_before_it_counts_and_its_name_after(tmp_path: Path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append((path, (tmp_path / "a").exists())))
    with replacing(tmp_path / "a") as temporary:
        temporary.touch()
    assert synced == [(temporary, False), (tmp_path, True)]
    synced.clear()
    make_folder(tmp_path / "b" / "c")
    assert {path for path, _ in synced} == {tmp_path, tmp_path / "b"}
