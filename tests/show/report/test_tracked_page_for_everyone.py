"""The page of tracked runs on any screen, in both themes, by ear, on paper, with any names."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from made_runs import tracked
from pages import Open, check_everything_has_a_name, check_nothing_is_cut_off, contrast, luminance
from torch import nn

from rankrise import watch
from rankrise.runs import open
from rankrise.show.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Page

PLOTS = "svg[aria-roledescription=plot]"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible(open_page: Open, tracked_page: Path, scheme: str) -> None:
    page = open_page(tracked_page, color_scheme=scheme)
    assert (luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) > 0.5) == (
        scheme == "light"
    )
    for selector in ("h1", "figcaption", ".heat caption", "nav a"):
        assert contrast(page, selector) > 4.5
    pairs = page.eval_on_selector_all(
        ".heat button",
        "all => all.map(one => [getComputedStyle(one).color, getComputedStyle(one).backgroundColor])",
    )
    assert pairs
    for ink, ground in pairs:
        dark, light = sorted((_srgb_luminance(page, ink), _srgb_luminance(page, ground)))
        assert (light + 0.05) / (dark + 0.05) > 3


def _srgb_luminance(page: "Page", colour: str) -> float:
    """Of any CSS colour: painted on a canvas and read back."""
    painted = page.evaluate(
        """colour => {
            const context = document.createElement("canvas").getContext("2d");
            context.fillStyle = colour;
            context.fillRect(0, 0, 1, 1);
            return `rgb(${[...context.getImageData(0, 0, 1, 1).data].slice(0, 3).join(",")})`;
        }""",
        colour,
    )
    return luminance(painted)


@pytest.mark.parametrize("width", [320, 768])
def test_on_a_small_screen_nothing_is_cut_off(open_page: Open, page_of_all: Path, width: int) -> None:
    page = open_page(page_of_all, width=width, has_touch=True)
    page.eval_on_selector_all("#claims details", "all => all.forEach(one => (one.open = true))")
    check_nothing_is_cut_off(page, width)


def test_everything_has_a_name_and_every_id_is_one_s_own(open_page: Open, page_of_all: Path) -> None:
    page = open_page(page_of_all)
    check_everything_has_a_name(page)
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))
    assert page.locator("h1").count() == 1


def test_on_paper_there_are_plots_and_tables_and_no_controls(open_page: Open, tracked_page: Path) -> None:
    page = open_page(tracked_page, color_scheme="dark")
    page.emulate_media(media="print")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1
    assert not page.locator("#choices").is_visible()
    assert page.locator(".heat").first.is_visible()


def test_names_that_a_user_gave_are_text_and_nothing_else(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    folder = shutil.copytree(tracked["unit"], tmp_path / "<img src=x onerror=alert(3)>")
    path = folder / "run.json"
    info = json.loads(path.read_text()) | {"note": hostile, "model": hostile}
    info["extra"] |= {"data": hostile}
    path.write_text(json.dumps(info))
    page = open_page(write_report(open([folder, tracked["hard"]]), tmp_path / "page.html"))
    assert hostile in page.locator(".story").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_the_numbers_of_many_heads_fit_their_cells_on_a_small_screen(open_page: Open, tmp_path: Path) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 12, 8, batch_first=True), 1)
    with watch.RankTracker(model, tmp_path / "run") as tracker:
        for parameter in model.parameters():
            parameter.data += 0.1 * torch.randn_like(parameter)
        tracker.step(1)
    page = open_page(write_report(open(tmp_path / "run"), tmp_path / "page.html"), width=420)
    widths = page.eval_on_selector_all(
        ".heat button", "all => all.map(one => [one.scrollWidth, one.clientWidth])"
    )
    assert len(widths) == 24
    assert all(written <= room for written, room in widths)


def test_a_record_without_spectra_has_a_page_that_says_so(open_page: Open, tmp_path: Path) -> None:
    page = open_page(write_report(open([tracked(tmp_path / "run", seed=0)]), tmp_path / "page.html"))
    assert "This run has no full spectra." in page.inner_text("#spectra-here")
    assert page.locator(PLOTS).count()
