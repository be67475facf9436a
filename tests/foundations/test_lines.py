"""Rows of JSON: torn and damaged lines."""

from pathlib import Path

import pytest

from rankrise import RankriseError
from rankrise.foundations.record.lines import Lines, last_step, read_lines


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"step":1,"a":1}\n{"step":2,"a"')
    assert last_step(path) == 1
    lines = Lines(path)
    lines.append(2, {"a": 5})
    lines.close()
    assert read_lines(path) == [{"step": 1, "a": 1}, {"step": 2, "a": 5}]
    assert last_step(path) == 2


@pytest.mark.parametrize("line", [b'{"step":', b"[]", b"3", b"{}", b'{"step":"x"}', b'{"step":1.5}', b"\xff"])
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
