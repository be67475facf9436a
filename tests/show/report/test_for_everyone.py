"""Both pages on any screen, in both themes, by ear and on paper."""

import re
from pathlib import Path

import pytest
from pages import PLOTS, Open

pytestmark = pytest.mark.slow


@pytest.fixture(params=["toy_page", "page_of_all"])
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.getfixturevalue(request.param)
    return found


def ground(page) -> int:
    """How light the page is, 0 to 255."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return int(re.findall(r"\d+", colour)[0])


def test_the_theme_is_the_system_s_and_paper_is_white(open_page: Open, path: Path) -> None:
    page = open_page(path, color_scheme="dark")
    assert ground(page) < 128
    page.emulate_media(media="print")
    assert ground(page) == 255
    assert not any(page.locator(controls).is_visible() for controls in ("#choices", "#view", "nav"))
    assert page.locator("figcaption").first.is_visible()


def test_on_a_small_screen_nothing_is_cut_off(open_page: Open, path: Path) -> None:
    width = 320
    page = open_page(path, width=width, has_touch=True)
    page.eval_on_selector_all("#claims details", "all => all.forEach(one => (one.open = true))")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    reach = page.eval_on_selector_all(
        "main *:not(.scroll *)", "all => Math.max(...all.map(one => one.getBoundingClientRect().right))"
    )
    assert reach <= width + 1


def test_all_controls_and_plots_have_names_and_plots_have_summaries(open_page: Open, path: Path) -> None:
    page = open_page(path)
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
    assert summaries
    assert all(summaries)
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(one => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))
