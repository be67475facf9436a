"""Files: what is written comes back."""

from pathlib import Path

from rankrise.foundations.files import read_json, write_json


def test_a_text_that_is_not_utf_8_is_kept(tmp_path: Path) -> None:
    note = b"ranks \xff of \xc3\xa9tudes".decode("utf-8", "surrogateescape")
    write_json(tmp_path / "run.json", {"note": note})
    assert read_json(tmp_path / "run.json") == {"note": note}
