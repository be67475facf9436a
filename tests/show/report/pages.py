"""What the tests read off a page, and what every page must do."""

import base64
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Open = Callable[..., "Page"]
PLOTS = "svg[aria-roledescription=plot]"


def unpacked(carried: dict[str, Any]) -> np.ndarray:
    """An array as the page carries it."""
    return np.frombuffer(base64.b64decode(carried["f32"]), "<f4").reshape(carried["shape"])


def plain(text: str) -> float:
    return float(text.replace("−", "-").replace("–", "nan").replace("∞", "inf"))


def rows_of(page: "Page", selector: str) -> list[list[str]]:
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def numbers_of(figure: "Locator") -> dict[str, list[float]]:
    """The table beneath a plot: where each line starts and ends, its smallest and its largest value."""
    if figure.locator("details").get_attribute("open") is None:
        figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    rows = figure.locator("tbody tr").evaluate_all(
        "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return {name: [plain(cell) for cell in cells] for name, *cells in rows}


def slide(page: "Page", selector: str, value: float) -> None:
    """Move a slider, as dragging it would."""
    page.eval_on_selector(
        selector, "(one, value) => { one.value = value; one.dispatchEvent(new Event('input')); }", value
    )


def ticks(page: "Page", plots: str) -> list[str]:
    """What stands along the axes of each plot."""
    found: list[str] = page.eval_on_selector_all(
        plots, "all => all.map(one => [...one.querySelectorAll('.grid text')].map(t => t.textContent).join())"
    )
    return found


def hover(page: "Page", plot: "Locator", label: "Locator") -> list[str]:
    """What the tip says just left of a line's label."""
    plot.scroll_into_view_if_needed()
    box = label.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] - 10, box["y"] + box["height"] / 2)
    return plot.locator("xpath=..").locator(".tip > *").all_inner_texts()


def check_zoom(page: "Page", plots: str) -> None:
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


def check_play(page: "Page", slider: str) -> None:
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


def check_nothing_is_cut_off(page: "Page", width: int) -> None:
    page.eval_on_selector_all("#claims details", "all => all.forEach(one => (one.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    reach = page.eval_on_selector_all(
        "main *:not(.scroll *)", "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    )
    assert reach <= width + 1


def check_it_can_be_heard(page: "Page") -> None:
    """All controls and plots have a name, plots a summary; headings go down by one; ids are unique."""
    nameless = """all => all.filter(one => {
        const label = one.getAttribute("aria-label") || one.closest("label")?.textContent || one.textContent;
        return !label.trim();
    }).map(one => one.outerHTML)"""
    shown = ":is(button, select, input, [tabindex]):not([hidden] *, [hidden])"
    assert page.eval_on_selector_all(shown, nameless) == []
    summaries = page.eval_on_selector_all(
        f"{PLOTS}:not([hidden] *)",
        "all => all.map(one => document.getElementById(one.getAttribute('aria-describedby')).textContent)",
    )
    assert all(summaries)
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(one => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))


def check_themes(page: "Page", selectors: list[str], scheme: str) -> None:
    """The page opens in the system's theme, the button changes it, and both are legible."""
    for theme in (scheme, "dark" if scheme == "light" else "light", scheme):
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(ground) > 0.5) == (theme == "light")
        for selector in selectors:
            ink = page.eval_on_selector(selector, "one => getComputedStyle(one).color")
            dark, light = sorted((luminance(ink), luminance(ground)))
            assert (light + 0.05) / (dark + 0.05) > 4.5, selector
        page.locator("#theme").click()


def check_on_paper(page: "Page") -> None:
    """Printed, the page has no controls and a white ground."""
    page.emulate_media(media="print")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1
    for controls in ("#choices", "#view", "nav"):
        assert not page.locator(controls).is_visible()
    assert page.locator("figcaption").first.is_visible()


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
