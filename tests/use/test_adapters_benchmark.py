"""The benchmark of adapters runs on tiny tasks, and goes on where it stopped."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("adapters", "adapter_tasks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import adapters

    return adapters


@pytest.mark.slow
def test_cuts_of_a_tiny_task_and_going_on(benchmark: Any, tmp_path: Path, capsys: Any) -> None:
    words = ["--tiny", "--tasks", "gpt2", "--seeds", "1", "--parts", "1", "--json"]
    words += ["--work", str(tmp_path / "work"), "--out", str(tmp_path / "out.json")]
    benchmark.main(words)
    printed = capsys.readouterr().out
    rows = {row["method"]: row for row in json.loads(printed[printed.index("{") :])["rows"]}
    assert rows[benchmark.PLAIN]["of_plain"] == 1
    assert rows[benchmark.FISHER]["needed"] > 0
    written = (tmp_path / "out.json").read_text()
    benchmark.main(words)
    assert (tmp_path / "out.json").read_text() == written
    assert "..." not in capsys.readouterr().out


def test_a_share_of_each_matrix(benchmark: Any) -> None:
    from rankrise.use._allocate import Spectrum

    spectra = {"a": Spectrum((8.0, 1.0, 1.0), 10.0, 5), "b": Spectrum((1.0,) * 10, 10.0, 5)}
    assert benchmark.share_of_each(spectra, 800) == {"a": 1, "b": 8}
