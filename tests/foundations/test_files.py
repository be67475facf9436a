"""Files: what is written comes back, and what a killed process was writing goes."""

import os
import time
from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.foundations import files
from rankrise.foundations.files import DAY, make_folder, read_json, replacing, whole_folder


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(RankriseError, match=r"run\.json"):
        read_json(path)


def test_what_a_killed_process_was_writing_is_removed_the_next_day(tmp_path: Path) -> None:
    file, folder, of_today = (tmp_path / f".{name}-unfinished-01234567" for name in "abc")
    for path in (folder, of_today):
        path.mkdir()
        (path / "weights").touch()
    for path in (file, folder):
        path.touch()
        os.utime(path, 2 * (time.time() - 2 * DAY,))
    with whole_folder(tmp_path / "other") as temporary:
        (temporary / "a").touch()
    assert set(tmp_path.iterdir()) == {of_today, tmp_path / "other"}


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
