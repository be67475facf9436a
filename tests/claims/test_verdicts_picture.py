"""The picture of all verdicts, in docs/results.md, is what the records give."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "results").exists(), reason="needs the repository's records")
def test_the_numbers_beside_the_picture_are_those_of_the_records(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import verdicts

    kept = (ROOT / "docs" / "images" / "verdicts.csv").read_text(encoding="utf-8")
    assert kept.count("does not hold") > 10
    monkeypatch.setattr(verdicts, "PICTURE", tmp_path / "verdicts")
    verdicts.main()
    assert (tmp_path / "verdicts.csv").read_text(encoding="utf-8") == kept
