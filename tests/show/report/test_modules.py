"""The page's modules become one script in the order they need each other, or a sentence says why not."""

import re
from pathlib import Path

import pytest

import rankrise.show.report
from rankrise.show.report.modules import assemble, web_source


@pytest.mark.parametrize("kind", ["toy", "tracked"])
def test_every_module_of_a_page_stands_once_and_after_those_it_imports(kind: str) -> None:
    script = assemble(f"{kind}/main.js")
    names = re.findall(r"^const (\w+) = \(\(\) => \{$", script, re.MULTILINE)
    assert len(names) == len(set(names))
    assert names[-1] == f"{kind}_main_js"
    for place, scope in enumerate(re.split(r"^const \w+ = \(\(\) => \{$", script, flags=re.MULTILINE)[1:]):
        assert set(re.findall(r"^const \{ .* \} = (\w+);$", scope, re.MULTILINE)) <= set(names[:place])


def test_lines_can_be_read_beside_each_other() -> None:
    for path in (Path(rankrise.show.report.__file__).parent / "web").rglob("*.js"):
        assert max(map(len, path.read_text().splitlines())) <= 160, path


def test_modules_that_import_each_other_are_refused() -> None:
    texts = {name: f'import {{ one }} from "./{other}";\n' for name, other in (("a", "b"), ("b", "a"))}
    with pytest.raises(ValueError, match="import each other: a → b → a"):
        assemble("a", texts.__getitem__)


@pytest.mark.parametrize("line", ['import plot from "./plot.js";', "export default 1;", "export { h };"])
def test_forms_that_it_does_not_know_are_refused_and_not_passed_on(line: str) -> None:
    with pytest.raises(ValueError, match="of a form not known here"):
        assemble("a.js", lambda name: f"{line}\n" if name == "a.js" else web_source(name))
