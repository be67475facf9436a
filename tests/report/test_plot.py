"""The page's plots in a real browser, on lines made here."""

from itertools import pairwise
from pathlib import Path

from pages import Open

from rankrise.show.report import write_report

CLOSE_ENDS = """() => {
    const plot = new Plot({ name: "close", title: "close", xLabel: "x", height: 290 });
    document.querySelector("main").append(plot.figure);
    const ends = { a: 1.02, b: 1.01, c: 1, d: 5 };
    const line = ([label, y]) => ({ label, direct: true, xs: [0, 1], ys: [0, y] });
    plot.show({ lines: Object.entries(ends).map(line) });
}"""


def test_lines_that_end_close_together_have_their_names_one_below_the_other(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    page = open_page(write_report([tracked["unit"]], tmp_path / "page.html"))
    page.evaluate(CLOSE_ENDS)
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
