"""The examples run as they stand, and docs/integrations.md shows what they do."""

import re
import runpy
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
    monkeypatch.chdir(tmp_path)
    ranks = []
    for words in (first, more):
        monkeypatch.setattr(sys, "argv", [name, "--run", str(run), *words])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        record = watch.load(run)
        ranks.append(dict(zip(record.measured.tolist(), record.stable_rank("KQ"), strict=True)))
    before, after = ranks
    due = [step for step in range(1, last + 1) if watch.Schedule().due(step) or step == last]
    left_out = record.info["left_out"].get("measurements", 0)  # on a slow disk
    assert set(after) <= set(due)
    assert len(after) >= len(due) - left_out
    assert all(numpy.array_equal(after[step], before[step]) for step in before if step <= saved_at)
    assert record.finished


def test_the_page_shows_every_example_as_it_is() -> None:
    assert {name for name, _ in SHOWN} == {f"examples/{path.name}" for path in ROOT.glob("examples/*.py")}
    for name, code in SHOWN:
        lines = {line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
        assert not {line.strip() for line in code.splitlines()} - {"", "..."} - lines
