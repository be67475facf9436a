"""The page of toy runs in a real browser: its numbers are the run's, and its controls work."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from pages import HOSTILE, PLOTS, Open, check_play, check_zoom, hover, plain, rows_of, slide, write_report

from rankrise.runs import ToyRun, open_toy

pytestmark = pytest.mark.slow


def test_stages_are_the_run_s(open_page: Open, run: ToyRun, toy_page: Path) -> None:
    page, stages, labels = open_page(toy_page), run.stages(0), run.labels(0)
    for alpha in run.settings.alphas:
        page.locator(f"input[name=alpha][value='{int(alpha.split('e')[1])}'] + span").click()
        crossings = [one for one in run.flow(0, alpha).crossings(1e-3) if one.upward]
        for row, stage in zip(rows_of(page, "#table-here"), stages, strict=True):
            times = [one.time for one in crossings if one.product == stage.product]
            nearest = min(times, key=lambda time: abs(time - stage.time), default=math.nan)
            assert row[2] == labels[stage.coordinate]
            assert plain(row[1]) == pytest.approx(stage.time, abs=5.1e-5)
            assert plain(row[4]) == pytest.approx(nearest, abs=6e-5, nan_ok=True)
            assert plain(row[6]) == pytest.approx(stage.loss, rel=1e-3)
            assert int(row[7]) == len(stage.support)


def test_the_panel_follows_the_slider_and_plots_can_be_read(open_page, run, toy_page):
    page, stages, labels, flow = open_page(toy_page), run.stages(0), run.labels(0), run.flow(0, "1e-8")
    for begun, stage in enumerate(stages):
        slide(page, "#time", stage.time - 0.05)
        time = float(page.input_value("#time"))
        assert page.locator(".next strong").first.inner_text() == labels[stage.coordinate]
        assert plain(page.locator(".next strong").last.inner_text()) == pytest.approx(stage.time, rel=1e-3)
        rows = {row[0]: row[1:] for row in rows_of(page, ".now")}
        values, plateau = flow.at(time), stages[begun - 1] if begun else None
        active = (values.abs() >= 1e-3).nonzero()[:, 0].tolist()
        assert rows["active"] == [str(len(active)), str(len(plateau.support) if plateau else 0)]
        for coordinate in active:
            shown, theory = map(plain, rows[labels[coordinate]])
            assert shown == pytest.approx(float(values[coordinate]), abs=2e-3)
            assert theory == pytest.approx(float(plateau.point[coordinate]) if plateau else 0, abs=5.1e-4)
    last = stages[len(stages) - 1]
    coordinate = max(last.support, key=lambda index: abs(float(last.point[index])))
    plot = page.locator(f"svg[aria-label='Entries of {run.places(0)[coordinate].kind}, report-run']")
    words = hover(page, plot, plot.locator(".labels text", has_text=labels[coordinate]))
    order = [stage.coordinate for stage in stages].index(coordinate) + 1
    assert words[0] == f"{labels[coordinate]}, stage {order}"
    theory = plain(words[2].removeprefix("Algorithm 1 "))
    assert theory == pytest.approx(float(last.point[coordinate]), abs=5.1e-4)
    check_zoom(page, f"#stages-here {PLOTS}")
    check_play(page, "#time")


def test_names_are_text_and_several_runs_share_their_controls(open_page, run, copy_of, tmp_path):
    name = "<script>alert(1)<img src=x onerror=alert(3)>"
    path = copy_of(name).folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"command": HOSTILE}))
    page = open_page(write_report([open_toy(path.parent), copy_of("'\"&<!--")], tmp_path / "page.html"))
    assert page.title() == f"Gradual rank increase: toy run {name}, toy run '\"&<!--"
    assert page.locator("#stages-here .run-name").all_inner_texts() == [name, "'\"&<!--"]
    assert page.locator("#settings pre").first.text_content() == HOSTILE
    assert (page.locator("img").count(), page.locator("script").count()) == (0, 2)
    slide(page, "#time", run.stages(0)[1].time + 0.05)
    one, other = page.locator(".now h4").all_inner_texts()
    assert one == other


def test_a_run_with_pieces_missing_opens_and_says_so(open_page: Open, copy_of: Any, tmp_path: Path) -> None:
    partial = copy_of("partial")
    for file in (partial.folder / "seed-0").glob("*"):
        file.unlink()
    page = open_page(write_report([open_toy(partial.folder)], tmp_path / "page.html"))
    assert "Nothing has been computed" in page.locator(".story").inner_text()
