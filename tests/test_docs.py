"""The prose pages show commands, flags, names and places that exist."""

import re
import shlex
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from rankrise.commands import command_of
from rankrise.commands.flags import parsed

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def commands_shown() -> Iterator[tuple[str, str]]:
    """Every line of a shell block that calls rankrise, with the page it is on."""
    for page in PAGES:
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for line in block.replace("\\\n", " ").splitlines():
                if found := re.match(r"(?:\$ )?rankrise (.*)", line):
                    yield page.name, found[1]


def names_shown() -> Iterator[tuple[str, str, str]]:
    """Every name of rankrise in a Python block, by page and module: as imported, and as in `watch.name`."""
    for page in PAGES:
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for module, imported in re.findall(r"^from (rankrise[\w.]*) import (.*)$", block, re.MULTILINE):
                for name in imported.split(", "):
                    yield page.name, module, name
                    used = re.findall(rf"\b{name}\.([a-zA-Z]\w*)", block) if module == "rankrise" else []
                    yield from ((page.name, f"{module}.{name}", one) for one in used)


@pytest.mark.parametrize(("page", "line"), commands_shown())
def test_a_command_that_is_shown_can_be_typed(page: str, line: str) -> None:
    name, *words = shlex.split(line, comments=True)
    assert parsed(name, command_of(name), words)


@pytest.mark.parametrize(("page", "module", "name"), sorted(set(names_shown())))
def test_a_name_that_is_shown_can_be_imported_and_is_not_on_its_way_out(
    page: str, module: str, name: str
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hasattr(import_module(module), name) or import_module(f"{module}.{name}")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/architecture.md"])
def test_a_place_that_a_newcomer_is_sent_to_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    places = re.findall(r"`((?:rankrise|tests|benchmarks|examples)/[\w./]*)`", text)
    assert [place for place in places if not (ROOT / place).exists()] == []
