"""docs/integrations.md shows what the examples do, and numbers that the benchmark prints."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "integrations.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"\]\(\.\./(examples/\w+\.py)\).*?```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_every_example_is_on_the_page() -> None:
    assert {name for name, _ in SHOWN} == {f"examples/{path.name}" for path in ROOT.glob("examples/*.py")}


@pytest.mark.parametrize(("name", "code"), SHOWN)
def test_lines_are_those_of_the_example(name: str, code: str) -> None:
    lines = {line.strip() for line in (ROOT / name).read_text(encoding="utf-8").splitlines()}
    shown = {line.strip() for line in code.splitlines()} - {"", "..."}
    assert not shown - lines


def test_numbers_on_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from many_devices import LLAMA_7B, Sharded

    printed = str(Sharded(LLAMA_7B, ranks=8, weight_bytes=4, every=20))
    shown = re.findall(r"\| ([\d.]+ (?:GB|%)) \|", PAGE)
    assert len(shown) == 5
    assert not set(shown) - {" ".join(pair) for pair in re.findall(r"([\d.]+) (GB|%)", printed)}
