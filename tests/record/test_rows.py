"""Rows of JSON lines: whole or absent, whatever happens to the writer."""

import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some

from rankrise import RankriseError
from rankrise.record.folder import Lines, read_lines

NUMBERS = some.dictionaries(
    some.text(max_size=5).filter(lambda name: name not in ("step", "crc32")),
    some.floats() | some.integers(-(2**50), 2**50),
    max_size=3,
)


def number(value: object) -> float:
    return float(value)  # type: ignore[arg-type]  # "nan" and "inf" are texts


@given(rows=some.lists(NUMBERS, min_size=1, max_size=4), cut=some.integers(0, 400))
def test_rows_come_back_and_a_torn_end_costs_one_row(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]], cut: int
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    lines = Lines(path)
    for step, row in enumerate(rows):
        lines.append(step, row)
    lines.close()
    found = read_lines(path)
    assert [row.pop("step") for row in found] == list(range(len(rows)))
    for before, after in zip(rows, found, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            same = before[name], number(after[name])
            assert same[0] == same[1] or all(map(math.isnan, same))
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])  # as a kill leaves it
    expected = min(len(rows), whole[:cut].count(b"\n"))
    assert len(read_lines(path)) == expected
    Lines(path).close()  # goes on after the last whole row
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:expected])


@pytest.mark.parametrize("line", [b'{"step":', b"[]", b"3", b"{}", b'{"step":"x"}', b"\xff"])
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "ranks.jsonl"
    path.write_bytes(b'{"step":1}\n' + line + b'\n{"step":3}\n')
    with pytest.raises(RankriseError, match=r"ranks\.jsonl is damaged in line 2"):
        read_lines(path)


def test_a_row_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines, real = Lines(tmp_path / "rows.jsonl"), os.write
    lines.append(1, {"loss": 2.0})
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda handle, data: real(handle, data[:5]))
        with pytest.raises(OSError, match="is the disk full"):
            lines.append(2, {"loss": 1.0})
    lines.append(3, {"loss": 0.5})
    lines.close()
    assert [row["step"] for row in read_lines(lines.path)] == [1, 3]
