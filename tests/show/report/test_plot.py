"""The page's plots in a real browser, on lines made here."""

from itertools import pairwise
from pathlib import Path

from pages import Open

from rankrise.show.report.modules import assemble, web_source

CLOSE_ENDS = """import { Plot } from "./plot.js";
const plot = new Plot({ name: "close", title: "close", xLabel: "x", height: 290 });
document.querySelector("main").append(plot.figure);
const ends = { a: 1.02, b: 1.01, c: 1, d: 5 };
const line = ([label, y]) => ({ label, direct: true, xs: [0, 1], ys: [0, y] });
plot.show({ lines: Object.entries(ends).map(line) });
document.documentElement.dataset.ready = "yes";
"""


def test_lines_that_end_close_together_have_their_names_one_below_the_other(
    open_page: Open, tmp_path: Path
) -> None:
    script = assemble("test.js", lambda name: CLOSE_ENDS if name == "test.js" else web_source(name))
    path = tmp_path / "page.html"
    path.write_text(
        f'<!doctype html><meta charset="utf-8"><main></main><script type="module">{script}</script>'
    )
    page = open_page(path)
    selector = "svg[aria-label='close'] .labels text"
    page.locator(selector).first.wait_for()
    named = page.eval_on_selector_all(
        selector, "all => all.map(one => [one.textContent, +one.getAttribute('y')])"
    )
    heights = dict(named)
    assert heights.keys() == set("abcd")
    assert min(after - before for before, after in pairwise(sorted(heights.values()))) > 11
    close = [heights[name] for name in "abc"]
    assert max(close) - min(close) < 25
