"""The verdicts that docs/results/ shows are those of the records."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / "results").exists(), reason="needs the repository's records")
def test_tables_in_the_docs_are_what_the_records_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import verdict_table

    for name, (page, written) in verdict_table.written().items():
        text = (ROOT / "docs" / "results" / page).read_text(encoding="utf-8")
        found = verdict_table.between(name).search(text)
        assert found is not None, name
        assert written.count("holds") > 10
        assert found[2].strip() == written.strip()
