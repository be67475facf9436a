"""The benchmark of adapters runs on tiny tasks, goes on where it stopped, and tells seeds together."""

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("peft")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
MODULES = (
    "adapters", "adapter_cuts", "adapter_further", "adapter_ranks", "adapter_table", "adapter_tasks",
    "adapter_training",
)  # fmt: skip


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in MODULES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    import adapters

    return adapters


@pytest.mark.slow
@pytest.mark.parametrize("task", ["minilm", "vit", "gpt2"])
def test_a_tiny_task_and_that_one_goes_on(benchmark: Any, task: str, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out.json"
    words = ["--tiny", "--tasks", task, "--seeds", "1", "--work", str(tmp_path / "work"), "--out", str(out)]
    benchmark.main(words)
    whole = json.loads(out.read_text())
    assert len([name for name in whole["parts"] if "/seed 0/" in name]) == 7 + 4
    capsys.readouterr()
    if task == "minilm":
        parts = list(whole["parts"].items())
        out.write_text(json.dumps(whole | {"parts": dict(parts[:-4])}))  # as if it had been killed
        benchmark.main(words)
        assert capsys.readouterr().out.count(" ...\n") == 4
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


def test_training_after_a_cut_is_searched_at_rates_tuned_on_the_first_seed(benchmark: Any) -> None:
    """The loss of this training is 2 / rank at the best rate, 9 times that of full fine-tuning, and 1 more at
    every step of 3 from it: so 0.1 is reached at rank 20, of the ranks that are tried at 24."""
    from adapter_cuts import PLAIN
    from adapter_further import needed_after

    cutting: Any = SimpleNamespace(one=10, wanted=0.1, initial={}, tuned={})
    calls: list[tuple[int, float]] = []

    def tried(rank: int, rate: float) -> dict[str, float]:
        calls.append((rank, round(math.log(rate / 1e-3, 3), 6)))
        return {"loss": 2 / rank + abs(calls[-1][1] - 2)}

    first = needed_after(cutting, PLAIN, 1000, 1e-3, tried, None)
    assert first["needed"] == 240
    assert {found["power"] for found in first["curve"].values()} == {2}
    calls.clear()
    assert needed_after(cutting, PLAIN, 900, 1e-3, tried, first)["needed"] == 240
    assert set(calls) == {(16, 2.0), (24, 2.0)}, "other seeds take its rates, and look near its rank"
    assert needed_after(cutting, PLAIN, 200, 1e-3, tried, first)["needed"] == 200, "the cut alone needs fewer"
    assert needed_after(cutting, PLAIN, 20, 1e-3, tried, None)["needed"] == 20, "there is no smaller rank"


def test_ours_is_also_told_beside_plain_svd_with_the_same_training(benchmark: Any) -> None:
    from adapter_cuts import FISHER, PLAIN
    from adapter_further import FURTHER

    needed = {PLAIN: 100, FURTHER[PLAIN]: 50, FISHER: 60, FURTHER[FISHER]: 40}
    parts = {
        f"task/seed 0/cut/{method}": {"found": {"method": method, "needed": number, "ranks": number / 10}}
        for method, number in needed.items()
    }
    rows = benchmark.summary([{"parts": parts}])
    (ours,) = [row for row in rows if row["method"] == FURTHER[FISHER]]
    assert (ours["of_plain"], ours["of_plain_trained"]) == (0.4, 0.8)
    assert f"| {FURTHER[FISHER]} | 4; 0.40; 0.80 (1) |" in benchmark.tables(rows)


def test_seeds_of_several_files_are_told_together_each_beside_its_own(benchmark: Any) -> None:
    plain, ours = "plain SVD, one rank", "ours"

    def record(**needed: int) -> dict[str, Any]:
        rows = {plain: needed["plain"], ours: needed["ours"]}
        return {
            "parts": {
                f"task/seed 0/cut/{name}": {
                    "seconds": 1.0,
                    "found": {"method": name, "needed": n, "ranks": n / 25},
                }
                for name, n in rows.items()
            }
        }

    records = [record(plain=100, ours=50), record(plain=200, ours=60)]
    rows = {row["method"]: row for row in benchmark.summary(records)}
    assert rows[ours]["seeds"] == 2
    assert rows[ours]["of_plain"] == pytest.approx(0.4)
    assert rows[ours]["of_plain_deviation"] == pytest.approx(0.2 / 2**0.5)
    assert "| ours | 2.2 ± 0.283; 0.40 ± 0.14 (2) |" in benchmark.tables(list(rows.values()))
