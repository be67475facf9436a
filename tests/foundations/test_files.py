"""Files: whole or not there."""

from contextlib import suppress
from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.foundations import files
from rankrise.foundations.files import read_json, replacing, whole_folder


@pytest.mark.parametrize("content", [b"", b"[1, 2]", b"\xff\xfe", b"[" * 100_000])
def test_damaged_json_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(content)
    with pytest.raises(RankriseError, match=r"run\.json"):
        read_json(path)


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


def test_a_folder_replaces_an_empty_one_only(tmp_path: Path) -> None:
    place = tmp_path / "checkpoint"
    for content in ("first", "second"):
        place.mkdir(exist_ok=True)
        with suppress(OSError), whole_folder(place) as temporary:
            (temporary / "weights").write_text(content)
    assert (place / "weights").read_text() == "first"
    assert [*tmp_path.iterdir()] == [place]


def test_a_file_is_synced_before_it_counts_and_its_name_after(tmp_path: Path, monkeypatch) -> None:
    synced = []
    monkeypatch.setattr(files, "sync", lambda path: synced.append((path, (tmp_path / "a").exists())))
    with replacing(tmp_path / "a") as temporary:
        temporary.touch()
    assert synced == [(temporary, False), (tmp_path, True)]
