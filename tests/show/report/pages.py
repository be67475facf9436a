"""What the tests read off a page, and what every page must do."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rankrise.runs import Run
from rankrise.show.report import write_pages

Open = Callable[..., Any]
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
PLOTS = "svg[aria-roledescription=plot]"


def write_report(runs: Sequence[Run], path: Path) -> Path:
    return write_pages(runs, path)[0].path


def plain(text: str) -> float:
    return float(text.replace("−", "-").replace("–", "nan").replace("∞", "inf"))


def rows_of(page, selector: str) -> list[list[str]]:
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def numbers_of(figure) -> dict[str, list[float]]:
    """The table beneath a plot: where each line starts and ends, its smallest and its largest value."""
    if figure.locator("details").get_attribute("open") is None:
        figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    rows = figure.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {name: [plain(cell) for cell in cells] for name, *cells in rows}


def slide(page, selector: str, value: float) -> None:
    """Move a slider, as dragging it would."""
    page.eval_on_selector(
        selector, "(one, value) => { one.value = value; one.dispatchEvent(new Event('input')); }", value
    )


def ticks(page, plots: str) -> list[str]:
    """What stands along the axes of each plot."""
    found: list[str] = page.eval_on_selector_all(
        plots, "all => all.map(one => [...one.querySelectorAll('.grid text')].map(t => t.textContent).join())"
    )
    return found


def hover(page, plot, label) -> list[str]:
    """What the tip says just left of a line's label."""
    plot.scroll_into_view_if_needed()
    box = label.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] - 10, box["y"] + box["height"] / 2)
    return plot.locator("xpath=..").locator(".tip > *").all_inner_texts()


def check_zoom(page, plots: str) -> None:
    """Dragging across a plot zooms all `plots`, the button shows all of them again, and keys zoom too."""
    whole, plot = ticks(page, plots), page.locator(plots).nth(1)
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 90)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 90, steps=4)
    page.mouse.up()
    assert all(before != after for before, after in zip(whole, ticks(page, plots), strict=True))
    page.locator("#zoom-reset").click()
    assert ticks(page, plots) == whole
    plot.focus()
    page.keyboard.press("+")
    assert ticks(page, plots) != whole
    page.keyboard.press("0")
    assert ticks(page, plots) == whole


def check_play(page, slider: str) -> None:
    """Play moves the slider to its end, or until Pause is pressed."""
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    slide(page, slider, 0)
    page.locator("#play").click()
    page.clock.run_for(3000)
    page.locator("#play").click()
    stopped, end = float(page.input_value(slider)), float(page.get_attribute(slider, "max") or 0)
    assert 0 < stopped < end / 2
    page.clock.run_for(3000)
    assert float(page.input_value(slider)) == stopped
    page.locator("#play").click()
    page.clock.run_for(30_000)
    assert float(page.input_value(slider)) == end
    assert page.locator("#play").inner_text() == "Play"
