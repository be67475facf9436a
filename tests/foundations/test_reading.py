"""What is not a plain file is refused at once, wherever files are read: nothing waits or fills the memory."""

import os
import struct
import zlib
from pathlib import Path

import pytest
from made_runs import tracked

from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.foundations.files import read_json
from rankrise.foundations.reading import read_bytes
from rankrise.train._data.photographs import read_image_folder


def put(kind: str, path: Path) -> Path:
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    return path


KINDS = pytest.mark.parametrize("kind", ["pipe", "device"])


@KINDS
@pytest.mark.parametrize("file", ["run.json", "ranks.jsonl", "steps.jsonl"])
def test_in_a_run(tmp_path: Path, kind: str, file: str, capsys) -> None:
    folder = tracked(tmp_path / "run")
    put(kind, folder / file)
    with pytest.raises(SystemExit) as left:
        main(["watch", str(folder)])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@KINDS
@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"])
def test_in_a_checkpoint(tmp_path: Path, kind: str, file: str, capsys) -> None:
    put(kind, tmp_path / file)
    with pytest.raises(SystemExit) as left:
        main(["compare", str(tmp_path), str(tmp_path)])
    assert left.value.code == 2
    assert "is not a plain file" in capsys.readouterr().err


def chunk(name: bytes, content: bytes) -> bytes:
    """A part of a PNG file."""
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def test_a_picture_of_900_megapixels(tmp_path: Path) -> None:
    header, data = chunk(b"IHDR", struct.pack(">IIBBBBB", 30_000, 30_000, 1, 0, 0, 0, 0)), chunk(b"IDAT", b"")
    for part in ("train", "val"):
        (tmp_path / part / "ant").mkdir(parents=True)
        (tmp_path / part / "ant" / "large.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + data)
    train, _, _ = read_image_folder(tmp_path)
    with pytest.raises(RankriseError, match=r"large.png cannot be decoded .*900000000 pixels"):
        train.open(0)


def test_a_file_larger_than_any_is(tmp_path: Path) -> None:
    with (tmp_path / "run.json").open("wb") as file:
        file.truncate(10**12)  # takes no space
    with pytest.raises(RankriseError, match="has more than 100,000,000 bytes"):
        read_json(tmp_path / "run.json")
    (tmp_path / "small").write_bytes(b"12")
    assert read_bytes(tmp_path / "small", 2) == b"12"


def test_json_is_nested_as_deep_as_is_gone_through(tmp_path: Path) -> None:
    for levels, name in ((99, "deep.json"), (100, "deeper.json")):
        (tmp_path / name).write_text(f'{{"extra": {"[" * levels}{"]" * levels}}}')
    assert read_json(tmp_path / "deep.json")
    with pytest.raises(RankriseError, match=r"deeper\.json is damaged \(it is nested deeper than 100 levels"):
        read_json(tmp_path / "deeper.json")


def test_a_run_that_is_nested_too_deep_is_a_sentence(tmp_path: Path, capsys) -> None:
    path = tracked(tmp_path / "run") / "run.json"
    path.write_text(path.read_text().replace('"now"', "[" * 900 + "]" * 900))
    with pytest.raises(SystemExit) as left:
        main(["watch", str(tmp_path / "run"), "--json"])
    assert left.value.code == 2
    assert "nested deeper" in capsys.readouterr().err
