"""The examples run as they stand, and docs/integrations.md shows what they do."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from rankrise import watch

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\]\(\.\./(examples/\w+\.py)\).*?```python\n(.*?)```", PAGE, flags=re.DOTALL)


# What to run, then how to go on; the step of the last checkpoint, and the last step of all.
CASES = {
    "plain_loop.py": (["--steps", "60"], ["--steps", "70"], 50, 70),
    "huggingface_trainer.py": (["--steps", "40"], ["--steps", "50"], 40, 50),
    "lightning_trainer.py": (["--steps", "50"], ["--steps", "60"], 50, 60),
    "accelerate_loop.py": (["--epochs", "1"], ["--epochs", "2"], 32, 64),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_example(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, more, saved_at, last = CASES[name]
    run = tmp_path / "run"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "examples" / name), "--run", str(run), *first]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    assert f"rankrise report {run}" in done.stdout
    before = {step: rank for step, rank in measured(run).items() if step <= saved_at}

    monkeypatch.setattr(sys, "argv", [name, "--run", str(run), *more])
    runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
    after = measured(run)
    due = [step for step in range(1, last + 1) if watch.Schedule().due(step) or step == last]
    left_out = watch.load(run).info["left_out"].get("measurements", 0)  # on a slow disk
    assert set(after) <= set(due)
    assert len(after) >= len(due) - left_out
    assert all(numpy.array_equal(after[step], rank) for step, rank in before.items())
    loss = watch.load(run).steps()["loss"]
    loss = loss[numpy.isfinite(loss)]
    assert loss[-5:].mean() < loss[:5].mean()
    assert watch.load(run).finished


def measured(run: Path) -> dict[int, numpy.ndarray]:
    record = watch.load(run)
    return dict(zip(record.measured.tolist(), record.stable_rank("KQ"), strict=True))


def test_the_page_shows_every_example_as_it_is() -> None:
    assert {name for name, _ in SHOWN} == {f"examples/{path.name}" for path in ROOT.glob("examples/*.py")}
    for name, code in SHOWN:
        lines = {line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
        assert not {line.strip() for line in code.splitlines()} - {"", "..."} - lines


def test_the_page_has_the_numbers_of_the_benchmark(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import many_devices

    many_devices.main()
    printed = re.findall(r"[\d.]+ (?:GB|%)$", capsys.readouterr().out, flags=re.MULTILINE)
    assert re.findall(r"\| ([\d.]+ (?:GB|%)) \|", PAGE) == printed
