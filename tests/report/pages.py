"""What the tests read off a page."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

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
