"""Files: what is written comes back, and what a killed process was writing goes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rankrise.foundations import files
from rankrise.foundations.files import MACHINE, make_folder, read_json, replacing, write_json, write_text


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
