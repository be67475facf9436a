"""Files: what is written comes back, and what a killed process was writing goes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.foundations import files
from rankrise.foundations.files import MACHINE, make_folder, read_json, replacing, whole_folder

SCRIPT = """
import os, sys
from pathlib import Path
from rankrise.foundations.files import replacing, whole_folder

with {how}(Path(sys.argv[1])) as path:
    {write}
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("content", [b"", b'{"step": 1', b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(RankriseError, match=r"run\.json is damaged .*: take another"):
        read_json(path, "take another")


@pytest.mark.parametrize(
    ("how", "write"),
    [("replacing", "path.write_text('half')"), ("whole_folder", "(path / 'a').touch()")],
)
def test_what_a_killed_process_was_writing_is_removed_by_the_next(
    tmp_path: Path, how: str, write: str
) -> None:
    command = [sys.executable, "-c", SCRIPT.format(how=how, write=write), str(tmp_path / "report.html")]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".report-")
    living = tmp_path / f".report-{MACHINE}-{os.getppid()}.html"
    elsewhere = tmp_path / ".report-000000-1.html"
    mine = tmp_path / ".report-of-mine.html"
    for path in (living, elsewhere, mine):
        path.touch()
    with whole_folder(tmp_path / "other") as temporary:
        (temporary / "a").touch()
    assert set(tmp_path.iterdir()) == {living, elsewhere, mine, tmp_path / "other"}


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("before")

    def fill() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise OSError(28, "the disk is full")

    with pytest.raises(OSError, match="full") as caught:
        fill()
    assert caught.value.filename == str(path)
    assert [*tmp_path.iterdir()] == [path]
    assert path.read_text() == "before"


def test_a_file_is_synced_before_it_counts_and_its_name_after(tmp_path: Path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append((path, (tmp_path / "a").exists())))
    with replacing(tmp_path / "a") as temporary:
        temporary.touch()
    assert synced == [(temporary, False), (tmp_path, True)]
    synced.clear()
    make_folder(tmp_path / "b" / "c")
    assert {path for path, _ in synced} == {tmp_path, tmp_path / "b"}
