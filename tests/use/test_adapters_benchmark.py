"""The benchmark of adapters runs on tiny tasks, goes on where it stopped, and tells seeds together."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("peft")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = ("adapters", "adapter_cuts", "adapter_ranks", "adapter_table", "adapter_tasks", "adapter_training")


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import adapters

    return adapters


@pytest.mark.slow
@pytest.mark.parametrize("task", ["minilm", "vit", "gpt2"])
def test_a_tiny_task_and_going_on(benchmark: Any, task: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    words = ["--tiny", "--tasks", task, "--seeds", "1", "--work", str(tmp_path / "work"), "--out", str(out)]
    benchmark.main(words)
    whole = json.loads(out.read_text())
    assert len([name for name in whole["parts"] if "/seed 0/" in name]) == 6 + 4
    parts = list(whole["parts"].items())
    out.write_text(json.dumps(whole | {"parts": dict(parts[: len(parts) // 2])}))  # as if it had been killed
    capsys.readouterr()
    benchmark.main(words)
    assert capsys.readouterr().out.count(" ...\n") == len(parts) - len(parts) // 2
    assert list(json.loads(out.read_text())["parts"]) == [name for name, _ in parts]
    benchmark.main(["--table", str(out), "--json"])
    rows = {row["method"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
    assert rows["plain SVD, one rank"]["of_plain"] == 1
    assert rows["Fisher weighted, ranks by kept square"]["needed"] > 0
    assert rows["AdaLoRA"]["parameters"] < 1.5 * rows["one rank for all"]["parameters"]


def test_a_file_of_other_settings_is_refused(benchmark: Any, tmp_path: Path) -> None:
    (tmp_path / "out.json").write_text(json.dumps({"asked": {"tiny": False}, "parts": {}}))
    with pytest.raises(SystemExit, match="pass another --out"):
        benchmark.Record(tmp_path / "out.json", {"tiny": True})


def test_a_share_of_each_matrix(benchmark: Any) -> None:
    from adapter_cuts import share_of_each

    from rankrise.use._allocate import Spectrum

    spectra = {"a": Spectrum((8.0, 1.0, 1.0), 10.0, 5), "b": Spectrum((1.0,) * 10, 10.0, 5)}
    assert share_of_each(spectra, 800) == {"a": 1, "b": 8}


def test_seeds_of_several_files_are_told_together_each_beside_its_own(benchmark: Any) -> None:
    def part(seed: int, kind: str, **found: Any) -> dict[str, Any]:
        return {"parts": {f"task/seed {seed}/{kind}": {"seconds": 1.0, "found": found}}}

    plain, ours = "plain SVD, one rank", "ours"
    records = [
        part(0, "cut/a", method=plain, needed=100, ranks=4),
        part(1, "cut/a", method=plain, needed=200, ranks=8),
    ]
    records += [
        part(0, "cut/b", method=ours, needed=50, ranks=2),
        part(1, "cut/b", method=ours, needed=60, ranks=2.4),
    ]
    rows = {row["method"]: row for row in benchmark.summary(records)}
    assert rows[ours]["seeds"] == 2
    assert rows[ours]["of_plain"] == pytest.approx(0.4)
    assert rows[ours]["of_plain_deviation"] == pytest.approx(0.2 / 2**0.5)
    assert "| ours | 2.2 ± 0.283; 0.40 ± 0.14 (2) |" in benchmark.tables(list(rows.values()))
