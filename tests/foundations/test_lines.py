"""Rows of JSON: torn, damaged and checked lines."""

import json
import os
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rankrise import RankriseError
from rankrise.record import lines as lines_module
from rankrise.record.lines import Lines, last_step, read_lines


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1,"a":1}\n{"step":2,"a"')
    assert last_step(path) == 1
    lines = Lines(path)
    lines.append(2, {"a": 5})
    lines.close()
    assert read_lines(path) == [{"step": 1, "a": 1}, {"step": 2, "a": 5}]
    assert last_step(path) == 2


def test_whole_lines_are_not_touched_on_opening(tmp_path: Path) -> None:
    """When a run was last written is told by the time of its files."""
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1,"a":1}\n')
    os.utime(path, (5, 5))
    Lines(path).close()
    assert path.stat().st_mtime == 5


@pytest.mark.parametrize(
    "line",
    [
        b'{"step":', b"[]", b"3", b"{}", b'{"step":"x"}', b'{"step":1.5}', b"\xff", b'{"step":true}',
        b'{"step":-1}', b'{"step":9223372036854775808}', b'{"step":2,"loss":"low"}',
        b'{"step":2,"crc32":null}',
        b'{"step":2,"loss":1' + 400 * b"0" + b"}",
        b'{"step":2,"KQ":{"top":[[[1' + 400 * b"0" + b"]]]}}", b"[" * 100_000 + b"]" * 100_000,
    ],
)  # fmt: skip
def test_a_damaged_line_is_told_by_its_number(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ranks.jsonl"
    path.write_bytes(b'{"step":1}\n' + line + b'\n{"step":3}\n')
    with pytest.raises(RankriseError, match="damaged in line 2: delete that line"):
        read_lines(path)


def test_a_file_without_a_whole_line_has_step_0(tmp_path: Path) -> None:
    path = tmp_path / "steps.jsonl"
    assert read_lines(path) == []
    path.write_bytes(b'{"step":7')
    assert (read_lines(path), last_step(path)) == ([], 0)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lines") / "ranks.jsonl"
    lines = Lines(path)
    lines.append(7, {"time": 0.5, "KQ": {"norm": [[1.25, 3]]}, "loss": float("nan")})
    lines.close()
    return path


def test_a_row_ends_with_the_checksum_of_what_is_before(written: Path) -> None:
    line = written.read_bytes()
    row = json.loads(line)
    assert list(row)[-1] == "crc32"
    before = line[: line.index(b',"crc32"')]
    assert int(row["crc32"], 16) == zlib.crc32(before)
    assert read_lines(written) == [{"step": 7, "time": 0.5, "KQ": {"norm": [[1.25, 3]]}, "loss": "nan"}]


@given(place=some.integers(0, 10_000), bit=some.integers(0, 7))
def test_no_flipped_bit_of_a_row_passes(written: Path, place: int, bit: int) -> None:
    """But for those that make a line of two, or none: the first part is refused, or the file says less."""
    data = bytearray(written.read_bytes())
    data[place % len(data)] ^= 1 << bit
    damaged = written.with_name("damaged.jsonl")
    damaged.write_bytes(data)
    if place % len(data) == len(data) - 1:  # the end of the line: it reads as torn
        assert read_lines(damaged) == []
        return
    with pytest.raises(RankriseError, match="is damaged in line 1"):
        read_lines(damaged)


@pytest.mark.parametrize("cut", [slice(0, 1), slice(1, 2), slice(0, None)])
def test_a_row_whose_checksum_was_removed_is_told_by_its_number(tmp_path: Path, cut: slice) -> None:
    path = tmp_path / "ranks.jsonl"
    lines = Lines(path)
    for step in (1, 2, 3):
        lines.append(step, {"loss": 0.5})
    lines.close()
    rows = path.read_bytes().splitlines(keepends=True)
    rows[cut] = [row[: row.index(b',"crc32"')] + b"}\n" for row in rows[cut]]
    path.write_bytes(b"".join(rows))
    with pytest.raises(RankriseError, match=f"is damaged in line {(cut.start or 0) + 1}"):
        read_lines(path, checked=True)
    assert len(read_lines(path)) == 3  # as those of earlier versions are


def test_the_name_of_the_checksum_is_taken(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "steps.jsonl")
    with pytest.raises(RankriseError, match="crc32 is the name of a row's checksum: pass another name"):
        lines.append(1, {"crc32": 1.0})
    lines.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_taken_away_is_put_back(tmp_path: Path, replaced: bool) -> None:
    path = tmp_path / "steps.jsonl"
    lines = Lines(path)
    lines.append(1, {"loss": 2.0})
    assert lines.in_place
    path.unlink()
    if replaced:
        path.write_text("another's\n")
    assert not lines.in_place
    aside = lines.restore()
    lines.append(2, {"loss": 1.0})
    lines.close()
    assert [row["step"] for row in read_lines(path)] == [1, 2]
    assert (aside is not None) == replaced
    if aside is not None:
        assert aside.read_text() == "another's\n"


@pytest.mark.parametrize("end", ["", "\n"], ids=["torn", "whole"])
def test_a_hole_of_many_bytes_is_not_read_into_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """A sparse file takes no space on the disk, and all of its size in memory."""
    monkeypatch.setattr(lines_module, "LONGEST", 1000)
    path = tmp_path / "steps.jsonl"
    lines = Lines(path)
    lines.append(1, {"loss": 1.0})
    with path.open("r+b") as file:
        file.seek(10**12)
        file.write(end.encode() or b"x")
    for use in (lambda: read_lines(path), lambda: Lines(path).end_before(2), lambda: lines.cut(2)):
        with pytest.raises(
            RankriseError, match=r"steps\.jsonl is damaged \(no row has 1,000 bytes\): restore it"
        ):
            use()
    assert path.stat().st_size == 10**12 + 1
    lines.close()
