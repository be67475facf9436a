"""What the tests read off a page."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

Open = Callable[..., "Page"]


def plain(text: str) -> float:
    return float(text.replace("−", "-").replace("–", "nan").replace("∞", "inf"))


def table_of(page: "Page", selector: str) -> list[list[str]]:
    rows: list[list[str]] = page.eval_on_selector_all(
        f"{selector} tbody tr", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    return rows


def luminance(colour: str) -> float:
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(page: "Page", selector: str) -> float:
    colours = page.eval_on_selector(
        selector, "e => [getComputedStyle(e).color, getComputedStyle(document.body).backgroundColor]"
    )
    dark, light = sorted(map(luminance, colours))
    return (light + 0.05) / (dark + 0.05)


def ticks(page: "Page", plots: str) -> list[str]:
    """What stands along the axes of each plot."""
    read = """plots => plots.map(
        plot => [...plot.querySelectorAll(".grid text")].map(text => text.textContent).join(" ")
    )"""
    found: list[str] = page.eval_on_selector_all(plots, read)
    return found


def check_zoom(page: "Page", plot: "Locator", plots: str) -> None:
    """Dragging across a plot zooms all `plots`, the button shows all of them again, and a key zooms in."""
    whole = ticks(page, plots)
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


def check_nothing_is_cut_off(page: "Page", width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    reach = page.eval_on_selector_all(
        "main *:not(.scroll *)", "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    )
    assert reach <= width + 1


def check_everything_has_a_name(page: "Page") -> None:
    nameless = """all => all.filter(one => {
        const label = one.getAttribute("aria-label") || one.closest("label")?.textContent || one.textContent;
        return !label.trim();
    }).map(one => one.outerHTML)"""
    assert page.eval_on_selector_all("button, select, input, [tabindex]", nameless) == []
