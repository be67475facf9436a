"""The page in a real browser: it opens in silence, its controls work, its numbers are the run's."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pages import (
    Open,
    check_everything_has_a_name,
    check_nothing_is_cut_off,
    check_zoom,
    contrast,
    luminance,
    plain,
    table_of,
    ticks,
)

from rankrise.claims import check_claims
from rankrise.runs import ToyRun, open_toy
from rankrise.show.report import write_report

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.fixture(scope="session")
def page_of_run(run: ToyRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([run], tmp_path_factory.mktemp("page") / "page.html")


@pytest.fixture
def visit(open_page: Open, run: ToyRun, page_of_run: Path, tmp_path: Path) -> Open:
    """visit(run, …, width=1360): the page of some runs, open; nothing may go wrong or be fetched."""

    def visited(*runs: ToyRun, **options: Any) -> "Page":
        path = page_of_run if runs == (run,) else write_report(runs, tmp_path / "page.html")
        return open_page(path, **options)

    return visited


def set_time(page: "Page", time: float) -> None:
    """Move the slider to the step nearest to a time, as dragging it would."""
    page.eval_on_selector(
        "#time", "(slider, time) => { slider.value = time; slider.dispatchEvent(new Event('input')); }", time
    )


def shown_time(page: "Page") -> float:
    return float(page.eval_on_selector("#time", "slider => Number(slider.value)"))


def test_it_opens_in_silence_and_needs_nothing_else(visit: Open, run: ToyRun) -> None:
    page = visit(run)
    assert page.title() == "Gradual rank increase: toy run report-run"
    assert page.locator("svg[aria-roledescription=plot]").count() == 15


def test_the_lines_of_single_stages_are_explained(visit: Open, run: ToyRun) -> None:
    caption = visit(run).locator("#convergence-here figcaption").nth(1).inner_text()
    assert caption.startswith("Each thin line is a stage, in the colour of its coordinate. The median")


def test_the_stage_table_is_the_run_s_at_every_scale(visit: Open, run: ToyRun) -> None:
    page, stages, labels = visit(run), run.stages(0), run.labels(0)
    for alpha in run.settings.alphas:
        exponent = str(int(alpha.split("e")[1]))
        page.locator(f"input[name=alpha][value='{exponent}'] + span").click()
        flow = run.flow(0, alpha)
        rows = table_of(page, "#table-here")
        assert len(rows) == len(stages)
        for number, (row, stage) in enumerate(zip(rows, stages, strict=True), start=1):
            crossings = [
                c.time for c in flow.crossings(1e-3) if c.upward and c.coordinate == stage.coordinate
            ]
            nearest = min(crossings, key=lambda time: abs(time - stage.time), default=math.nan)
            assert row[0] == str(number)
            assert row[2] == labels[stage.coordinate]
            assert plain(row[1]) == pytest.approx(stage.time, abs=5.1e-5)
            assert plain(row[4]) == pytest.approx(nearest, abs=6e-5, nan_ok=True)
            assert plain(row[6]) == pytest.approx(stage.loss, rel=1e-3)
            assert int(row[7]) == len(stage.support)


def test_every_stage_is_seen_without_a_scroll_bar_of_its_own(visit: Open, run: ToyRun) -> None:
    page = visit(run)
    fits = "one => one.scrollHeight <= one.clientHeight"
    assert page.locator("#table-here [role=region]").evaluate(fits)
    page.evaluate(
        """() => {
            const rows = document.querySelector("#table-here tbody");
            while (rows.rows.length < 25) rows.append(rows.rows[0].cloneNode(true));
        }"""
    )
    assert page.locator("#table-here [role=region]").evaluate(fits)


def test_the_claims_are_those_of_the_run_with_statistic_threshold_and_verdict(
    visit: Open, run: ToyRun
) -> None:
    page, claims = visit(run), check_claims([run])
    marks = {"holds": "✓", "does not hold": "✗", "not decided": "?"}
    verdicts = [f"{marks[claim.verdict]} {claim.verdict}" for claim in claims]
    assert page.locator(".verdicts .verdict").all_text_contents() == verdicts
    rows = page.eval_on_selector_all(
        ".claims .measure", "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
    )
    measures = [one for claim in claims for one in (*claim.deciding, *claim.choices, *claim.beside)]
    assert len(rows) == len(measures)
    for (name, value, needed, why), measure in zip(rows, measures, strict=True):
        assert (name, why) == (measure.label, measure.why)
        assert needed == measure.needed.replace("<=", "≤").replace(">=", "≥").replace("-", "−")
        assert plain(value.split()[0]) == pytest.approx(
            math.nan if measure.value is None else measure.value, rel=6e-3, nan_ok=True
        )


def test_the_slider_moves_by_keys_and_the_panel_follows_it(visit: Open, run: ToyRun) -> None:
    page, stages, labels, flow = visit(run), run.stages(0), run.labels(0), run.flow(0, "1e-8")
    page.locator("#time").focus()
    before = shown_time(page)
    page.keyboard.press("ArrowRight")
    assert shown_time(page) == pytest.approx(before + run.settings.until / 500)
    page.keyboard.press("Home")
    assert page.locator(".now h4").inner_text().endswith(" 0.000")
    for begun, stage in enumerate(stages):
        set_time(page, stage.time - 0.05)
        time = shown_time(page)
        assert page.locator(".next strong").first.inner_text() == labels[stage.coordinate]
        assert plain(page.locator(".next strong").last.inner_text()) == pytest.approx(stage.time, rel=1e-3)
        rows = {row[0]: row[1:] for row in table_of(page, ".now")}
        values = flow.at(time)
        active = values.abs() >= 1e-3
        assert rows["active"] == [str(int(active.sum())), str(len(stages[begun - 1].support) if begun else 0)]
        for coordinate in active.nonzero()[:, 0].tolist():
            shown, theory = rows[labels[coordinate]]
            assert plain(shown) == pytest.approx(float(values[coordinate]), abs=2e-3)
            assert plain(theory) == pytest.approx(
                float(stages[begun - 1].point[coordinate]) if begun else 0, abs=5.1e-4
            )
    page.keyboard.press("End")
    assert stages.message in page.locator(".next").inner_text()


def test_buttons_go_from_plateau_to_plateau_and_play_runs_and_stops(visit: Open, run: ToyRun) -> None:
    page, times = visit(run), [stage.time for stage in run.stages(0)]
    set_time(page, times[0])
    page.locator("#after").click()
    assert shown_time(page) == pytest.approx((times[0] + times[1]) / 2, abs=run.settings.until / 500)
    page.locator("#before").click()
    assert shown_time(page) == pytest.approx(times[0] / 2, abs=run.settings.until / 500)
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    start = shown_time(page)
    page.locator("#play").click()
    page.clock.run_for(1000)
    assert start < shown_time(page) < run.settings.until
    page.locator("#play").click()
    assert page.locator("#play").inner_text() == "Play"
    stopped = shown_time(page)
    page.clock.run_for(1000)
    assert shown_time(page) == stopped


def test_dragging_zooms_every_plot_of_time_and_show_all_undoes_it(visit: Open, run: ToyRun) -> None:
    page = visit(run)
    plots = "#stages-here svg[aria-roledescription=plot]"
    whole = ticks(page, plots)
    check_zoom(page, page.locator(plots).nth(1), plots)
    page.keyboard.press("0")
    assert ticks(page, plots) == whole
    assert page.locator("#zoom-reset").is_disabled()


def test_hovering_names_the_coordinate_its_stage_and_its_value(visit: Open, run: ToyRun) -> None:
    page, stages, labels = visit(run), run.stages(0), run.labels(0)
    last = stages[len(stages) - 1]
    kinds = [place.kind for place in run.places(0)]
    coordinate = max(last.support, key=lambda index: abs(float(last.point[index])))
    plot = page.locator(f"svg[aria-label='Entries of {kinds[coordinate]}, report-run']")
    plot.scroll_into_view_if_needed()
    label = plot.locator(".labels text", has_text=labels[coordinate])
    at, box = label.bounding_box(), plot.bounding_box()
    assert at is not None
    assert box is not None
    page.mouse.move(at["x"] - 10, at["y"] + at["height"] / 2)
    tip = plot.locator("xpath=..").locator(".tip")
    order = next(number for number, stage in enumerate(stages, start=1) if stage.coordinate == coordinate)
    words = tip.locator("> *").all_inner_texts()
    assert words[0] == f"{labels[coordinate]}, stage {order}"
    assert plain(words[2].removeprefix("Algorithm 1 ")) == pytest.approx(
        float(last.point[coordinate]), abs=5.1e-4
    )
    assert plot.locator("path.lit").count() == 2


def test_the_numbers_of_a_plot_can_be_read_and_saved(visit: Open, run: ToyRun, tmp_path: Path) -> None:
    page, full = visit(run), run.full(0)
    figure = page.locator("#full-here figure").nth(1)
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    rows = figure.locator("tbody tr").all()
    assert len(rows) == 3
    for row, values in zip(rows, full.singular_values_kq.T, strict=True):
        shown = [plain(text) for text in row.locator("td").all_inner_texts()]
        expected = [float(values[0]), float(values[-1]), float(values.min()), float(values.max())]
        assert shown == pytest.approx(expected, rel=1e-3, abs=2e-3)
    with page.expect_download() as download:
        figure.locator("button", has_text="CSV").click()
    download.value.save_as(tmp_path / "saved.csv")
    lines = (tmp_path / "saved.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "line,x,y"
    assert float(lines[-1].split(",")[2]) == pytest.approx(float(full.singular_values_kq[-1, -1]), abs=1e-4)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_legible_and_the_button_changes_between_them(
    visit: Open, run: ToyRun, scheme: str
) -> None:
    page = visit(run, color_scheme=scheme)
    background = "getComputedStyle(document.body).backgroundColor"
    assert (luminance(page.evaluate(background)) > 0.5) == (scheme == "light")
    for _ in range(2):
        for selector in ("h1", "figcaption", "nav a", ".now .key"):
            assert contrast(page, selector) > 4.5
        page.locator("#theme").click()
    assert (luminance(page.evaluate(background)) > 0.5) == (scheme == "light")


@pytest.mark.parametrize("width", [320, 360, 768])
def test_on_a_small_screen_nothing_is_cut_off(visit: Open, run: ToyRun, width: int) -> None:
    page = visit(run, width=width, has_touch=True)
    for radio in page.locator("input[name=alpha] + span").all():
        radio.click()
        check_nothing_is_cut_off(page, width)


def test_everything_has_a_name_and_headings_go_down_by_one(visit: Open, run: ToyRun) -> None:
    page = visit(run)
    check_everything_has_a_name(page)
    summaries = page.eval_on_selector_all(
        "svg[aria-roledescription=plot]",
        """all => all.map(one => one.getAttribute("aria-describedby"))
            .map(id => document.getElementById(id).textContent.trim())""",
    )
    assert all(summaries)
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(one => Number(one.tagName[1]))")
    assert levels.count(1) == 1
    ids = page.eval_on_selector_all("[id]", "all => all.map(one => one.id)")
    assert len(ids) == len(set(ids))


HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"


def test_names_that_a_user_gave_are_text_and_nothing_else(visit: Open, copy_of: Any) -> None:
    name = "<script>alert(1)<img src=x onerror=alert(3)>"
    hostile = copy_of(name)
    path = hostile.folder / "run.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"note": HOSTILE, "command": HOSTILE}))
    path = hostile.folder / "seed-0" / "stages.json"
    stages = json.loads(path.read_text())
    path.write_text(json.dumps(stages | {"labels": [HOSTILE + label for label in stages["labels"]]}))
    page = visit(open_toy(hostile.folder), copy_of("'\"&<!--"))
    assert page.title() == f"Gradual rank increase: toy run {name}, toy run '\"&<!--"
    assert page.locator("#stages-here .run-name").all_inner_texts() == [name, "'\"&<!--"]
    assert page.locator("#settings pre").first.inner_text() == HOSTILE
    assert page.locator("#settings dd", has_text=HOSTILE).count() == 1
    assert page.locator(".next strong").first.inner_text().startswith(HOSTILE)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_several_runs_stand_side_by_side_and_share_their_controls(
    visit: Open, run: ToyRun, copy_of: Any
) -> None:
    page = visit(run, copy_of("other"))
    left, right = (place.bounding_box() for place in page.locator("#stages-here .run").all())
    assert left is not None
    assert right is not None
    assert left["y"] == right["y"]
    assert left["x"] + left["width"] <= right["x"]
    set_time(page, run.stages(0)[1].time + 0.05)
    panels = page.locator(".now h4").all_inner_texts()
    assert len(panels) == 2
    assert panels[0] == panels[1]
    assert panels[0].startswith("Stage 2 of ")


def test_a_run_with_pieces_missing_opens_and_says_so(visit: Open, copy_of: Any) -> None:
    partial = copy_of("partial")
    for file in (partial.folder / "seed-0").glob("*"):
        if not file.name.startswith("stages"):
            file.unlink()
    page = visit(partial)
    assert "not finished" in page.locator(".story").inner_text()
    assert "no experiment with full weights" in page.locator("#full-here").inner_text()
    assert len(table_of(page, "#table-here")) == len(partial.stages(0))
    for file in (partial.folder / "seed-0").glob("*"):
        file.unlink()
    assert "Nothing has been computed" in (page := visit(partial)).locator(".story").inner_text()
    assert page.locator("#descent-here figcaption").first.inner_text() == "Not computed yet."


def test_on_paper_there_are_no_controls_and_no_dark_ground(visit: Open, run: ToyRun) -> None:
    page = visit(run, color_scheme="dark")
    page.emulate_media(media="print")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) == 1
    assert contrast(page, "figcaption") > 7
    assert not page.locator("#choices").is_visible()
    assert not page.locator("nav").is_visible()
    assert page.locator("#table-here table").is_visible()
