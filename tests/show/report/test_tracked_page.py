"""The page of tracked runs in a real browser: silent, its controls work, its numbers are the record's."""

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from pages import Open, check_zoom, plain, table_of, ticks
from torch import nn
from tracked_runs import write_rows

from rankrise import watch
from rankrise.claims import check_claims
from rankrise.record.lines import read_lines
from rankrise.runs import open
from rankrise.show.report import write_report
from rankrise.watch.types import FoundStage, FoundStep

if TYPE_CHECKING:
    from playwright.sync_api import Page

PLOTS = "svg[aria-roledescription=plot]"


def slide(page: "Page", place: int) -> None:
    page.eval_on_selector(
        "#step",
        "(slider, place) => { slider.value = place; slider.dispatchEvent(new Event('input')); }",
        place,
    )


def heat(page: "Page", product: str) -> np.ndarray:
    cells = page.eval_on_selector_all(
        f".heat button[id^=heat-{product}-]", "all => all.map(one => one.getAttribute('aria-label'))"
    )
    return np.array([plain(cell.split("stable rank ")[1]) for cell in cells])


def test_it_opens_and_tells_the_story_of_the_record(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path]
) -> None:
    page, run = open_page(tracked_page), watch.load(tracked["unit"])
    assert page.title() == "Gradual rank increase: CIFAR-10 (run unit)"
    assert page.locator(PLOTS).count() == 10
    told = page.locator(".story").inner_text()
    for fact in ("CIFAR-10", "Copier", "3 layers", "2 heads", "size 20", "12 epochs"):
        assert fact in told
    first, last = run.stable_rank("VO")[[0, -1]].mean(axis=(1, 2))
    assert f"{first:.2f} to {last:.2f}" in told
    assert "not finished" not in told
    verdicts = [text.split(" ", 1)[1] for text in page.locator(".verdicts .verdict").all_text_contents()]
    assert verdicts == [claim.verdict for claim in check_claims(open(tracked["unit"]))]


def test_the_heads_follow_the_slider_and_keys_move_it(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path]
) -> None:
    page, run = open_page(tracked_page), watch.load(tracked["unit"])
    for place in (59, 10, 0):
        slide(page, place)
        for product in ("KQ", "VO"):
            assert heat(page, product) == pytest.approx(run.stable_rank(product)[place].ravel(), rel=6e-3)
    page.locator("#step").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".steps output").inner_text() == "epoch 0.4 (step 4)"
    page.keyboard.press("End")
    assert page.locator(".steps output").inner_text() == "epoch 12 (step 120)"


def test_a_layer_and_a_head_can_be_chosen_and_their_numbers_read(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path]
) -> None:
    page, run = open_page(tracked_page), watch.load(tracked["unit"])
    assert page.locator("#head").is_disabled()
    page.select_option("#layer", "1")
    figure = page.locator("#ranks-here figure").nth(1)
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    ranks = run.stable_rank("VO")[:, 1]
    shown = {
        row[0]: [plain(cell) for cell in row[1:]] for row in table_of(page, "#ranks-here figure:nth-child(2)")
    }
    for name, curve in (("layer 2, mean over heads", ranks.mean(1)), ("layer 2, head 2", ranks[:, 1])):
        expected = [curve[0], curve[-1], curve.min(), curve.max()]
        assert shown[name] == pytest.approx(expected, rel=2e-3)
    page.locator("#heat-KQ-2-1").focus()
    page.keyboard.press("Enter")
    assert (page.input_value("#layer"), page.input_value("#head")) == ("2", "1")
    assert page.evaluate("document.activeElement.id") == "heat-KQ-2-1"
    assert page.locator("#heat-KQ-2-1").get_attribute("aria-pressed") == "true"
    assert "layer 3, head 2" in page.locator("#spectra-here figcaption").first.inner_text()


def test_another_rank_can_be_chosen_for_plots_and_heads(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path]
) -> None:
    page, run = open_page(tracked_page), watch.load(tracked["unit"])
    kinds = {f"{share} % energy": run.energy_rank("VO")[..., at] for at, share in enumerate((90, 95, 99))}
    kinds["entropy"] = run.entropy_rank("VO")
    assert page.locator("#rank option").all_inner_texts() == ["stable", *kinds]
    for kind, curves in kinds.items():
        page.select_option("#rank", kind)
        cells = page.eval_on_selector_all(
            ".heat button[id^=heat-VO-]", "all => all.map(one => one.getAttribute('aria-label'))"
        )
        shown = [plain(cell.split(f"{kind} rank ")[1]) for cell in cells]
        assert shown == pytest.approx(curves[-1].ravel(), rel=6e-3)
        titles = page.locator("#ranks-here h4").all_inner_texts()
        assert all(title.lower().startswith(f"{kind} rank of δ(") for title in titles)
        assert f"{curves[-1].mean():.3g} (change of VO)" in page.locator("#glance-here").inner_text()


def test_time_can_be_played(open_page: Open, tracked_page: Path) -> None:
    page = open_page(tracked_page)
    page.clock.install(time=0)
    page.clock.pause_at(1000)
    page.locator("#play").click()
    assert page.locator("#play").inner_text() == "Pause"
    assert page.input_value("#step") == "0"  # from the end it begins again
    page.clock.run_for(7000)
    assert 20 < int(page.input_value("#step")) < 40  # of 60, in 15 seconds
    slide(page, 5)
    assert page.locator("#play").inner_text() == "Play"
    page.locator("#play").click()
    page.clock.run_for(20_000)
    assert (page.input_value("#step"), page.locator("#play").inner_text()) == ("59", "Play")


def test_plots_come_before_claims_which_are_folded(open_page: Open, tracked_page: Path) -> None:
    page = open_page(tracked_page)
    plots = page.locator(PLOTS).first.bounding_box()
    claims = page.locator("#claims").bounding_box()
    assert plots is not None
    assert claims is not None
    assert plots["y"] < claims["y"]
    assert not page.locator(".verdicts").first.is_visible()
    page.locator("#claims > details > summary").click()
    assert page.locator(".verdicts").first.is_visible()


def test_an_encoder_decoder_s_layers_and_other_matrices_have_their_names(
    open_page: Open, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = nn.Transformer(8, 2, 1, 1, 8, batch_first=True)
    matrices = ["encoder.layers.0.linear1.weight"]
    extra = {"base": "t5-<b>tiny</b>", "adapter_rank": 3}
    with watch.RankTracker(model, tmp_path / "run", matrices=matrices, extra=extra) as tracker:
        for step in range(1, 4):
            for weight in model.parameters():
                weight.data += 0.1 * torch.randn_like(weight)
            tracker.step(step, loss=1.0 / step)
    run = watch.load(tmp_path / "run")
    page = open_page(write_report(open(tmp_path / "run"), tmp_path / "page.html"))
    names = ["encoder.layers.0.self_attn", "decoder.layers.0.self_attn", "decoder.layers.0.multihead_attn"]
    titles = [f"layer {number} ({name})" for number, name in enumerate(names, start=1)]
    assert page.locator("#layer option").all_inner_texts() == ["all layers", *titles]
    assert page.locator("#ranks-here figure").first.locator(".plot-key span").all_inner_texts() == titles
    rows = page.locator(".heat").first.locator("tbody th")
    assert rows.all_inner_texts() == [title.removeprefix("layer ") for title in titles]
    assert rows.evaluate_all("all => all.every(one => one.scrollWidth <= one.clientWidth)")  # none is cut off
    figure = page.locator("#ranks-here figure").nth(2)
    assert figure.locator(".plot-key span").all_inner_texts() == run.matrices
    last = run.stable_rank(run.matrices[0])[-1]
    assert f"1 matrix: {last:.3g} at the end" in figure.locator("figcaption").inner_text()
    told = page.locator(".story").inner_text()
    assert "an adapter of rank 3" in told
    assert "on top of t5-<b>tiny</b>" in told


def test_the_spectra_are_the_record_s_at_the_step_nearest_to_the_slider(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path]
) -> None:
    page, run = open_page(tracked_page), watch.load(tracked["unit"])
    page.locator("#heat-VO-0-1").click()
    page.locator("#normalised").uncheck()
    slide(page, 20)  # step 42, nearest to 40
    figure = page.locator("#spectra-here figure").nth(1)
    assert "change at epoch 4 (step 40)" in figure.locator(".plot-key").inner_text()
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()
    shown = {row[0]: plain(row[1]) for row in table_of(page, "#spectra-here figure:nth-child(2)")}
    assert shown["initial product"] == pytest.approx(float(run.spectrum("VO")[0][1, 0]), rel=1e-3)
    for step in run.spectra_steps:
        name = f"change at epoch {step / 10:g} (step {step})"
        assert shown[name] == pytest.approx(float(run.spectrum("VO", int(step))[0][1, 0]), rel=1e-3)

    def above(values: np.ndarray) -> int:
        return int((values > 0.1 * values[0]).sum())

    change, initial = above(run.spectrum("VO", 40)[0][1]), above(run.spectrum("VO")[0][1])
    values = "1 value" if change == 1 else f"{change} values"
    told = f"{values} of the change at epoch 4 (step 40), {initial} of the initial product"
    assert told in figure.locator("figcaption").inner_text()


def test_time_is_linear_or_logarithmic_and_zooms_together(open_page: Open, tracked_page: Path) -> None:
    page = open_page(tracked_page)
    timed = f"#ranks-here {PLOTS}, #training-here {PLOTS}"
    logarithmic = ticks(page, timed)
    page.locator("#logTime").uncheck()
    linear = ticks(page, timed)
    assert all(before != after for before, after in zip(logarithmic, linear, strict=True))
    check_zoom(page, page.locator(f"#ranks-here {PLOTS}").first, timed)


def test_hovering_says_which_line_and_what_it_is(open_page: Open, tracked_page: Path) -> None:
    page = open_page(tracked_page)
    page.select_option("#layer", "0")
    plot = page.locator("svg[aria-label='Stable rank of the change of KQ']")
    plot.scroll_into_view_if_needed()
    label, box = plot.locator(".labels text").first.bounding_box(), plot.bounding_box()
    assert label is not None
    assert box is not None
    page.mouse.move(label["x"] - 12, label["y"] + label["height"] / 2)
    words = plot.locator("xpath=..").locator(".tip > *").all_inner_texts()
    assert words[0].startswith("layer 1, ")
    assert words[1].startswith("stable rank ")
    assert words[2].startswith("epoch ")


def test_several_runs_are_chosen_between_and_listed(
    open_page: Open, page_of_all: Path, tracked: dict[str, Path]
) -> None:
    page = open_page(page_of_all)
    assert page.locator("#run option").all_inner_texts() == ["unit", "again", "small", "hard", "wander"]
    rows = {row[0]: row for row in table_of(page, "#runs-here")}
    for name, path in tracked.items():
        ends = watch.load(path).stable_rank("KQ")[-1]
        assert plain(rows[name][6]) == pytest.approx(float(ends.mean()), rel=6e-3)
    assert page.locator(
        "svg[aria-label='Stable rank of the change of VO by initialisation scale']"
    ).is_visible()
    assert page.locator(
        "#glance-here svg[aria-label='Stable rank of the change by initialisation scale, all heads']"
    ).is_visible()
    page.select_option("#run-above", label="hard")
    assert page.input_value("#run") == "3"
    assert page.locator("#glance-here h4").first.inner_text().startswith("hard: stable rank of what was")
    page.select_option("#run", label="small")
    assert heat(page, "VO") == pytest.approx(
        watch.load(tracked["small"]).stable_rank("VO")[-1].ravel(), rel=6e-3
    )
    page.locator("#runs-here button").nth(4).click()
    assert page.input_value("#run") == "4"
    assert page.locator(".steps output").inner_text() == "step 120"


def test_a_claim_has_its_verdict_on_each_data_set_with_the_numbers_folded_away(
    open_page: Open, page_of_all: Path, tracked: dict[str, Path]
) -> None:
    page, claims = open_page(page_of_all), check_claims(open(list(tracked.values())))
    page.locator("#claims > details > summary").click()
    rows = page.eval_on_selector_all(
        ".judged",
        """all => all.flatMap(one => [...one.querySelectorAll(".verdicts > tbody > tr")].map(
            row => [one.querySelector("h3").textContent.toLowerCase(),
                    row.cells[0].textContent, row.cells[1].textContent.slice(2)]))""",
    )
    assert rows == [[claim.name, claim.subject, claim.verdict] for claim in claims]
    assert len({claim.verdict for claim in claims}) == 4
    judged = page.locator(".judged", has_text="The rank of the change grows")
    assert "(the paper’s claim)" in judged.inner_text()
    claim = next(claim for claim in claims if claim.name == "rank grows")
    effects = judged.locator(".effects").first.inner_text()
    assert "layer 1 " in effects
    assert effects.count("layer") == len(claim.effects) == 3
    folded = judged.locator("details").first
    assert not folded.locator(".measure").first.is_visible()
    folded.locator("summary").click()
    shown = [*claim.deciding, *claim.choices, *claim.beside]
    assert len(folded.locator(".measure th").all_inner_texts()) == len(shown)
    assert folded.locator(".measure .fails").count() == sum(one.passes is False for one in shown)


def test_a_value_recorded_once_is_a_dot_and_further_texts_have_plots(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "text")
    info = json.loads((run / "run.json").read_text())
    info["extra"]["epoch_steps"] = 120
    (run / "run.json").write_text(json.dumps(info))
    lines = read_lines(run / "steps.jsonl")
    lines[50] |= {"perplexity/a/b": 1650.0, "word_perplexity/a/b": 2000.0}
    lines[-1] |= {"perplexity": 900.0, "word_perplexity/a/b": 1000.0}
    write_rows(run / "steps.jsonl", lines)
    page = open_page(write_report(open(run), run / "report.html"))
    assert "for 1 epoch (120 steps)" in page.locator(".story").inner_text()
    figures = {
        figure.locator("h4").inner_text(): figure for figure in page.locator("#training-here figure").all()
    }
    further = ["Perplexity, a/b", "Perplexity by words, a/b"]
    assert list(figures)[-2:] == further
    captions = [figures[name].locator("figcaption").inner_text() for name in further]
    assert captions[0].startswith(
        f"1650 at epoch {lines[50]['step'] / 120:.3g} (step {lines[50]['step']}), the"
    )
    assert captions[1].startswith("From 2000 to 1000.")
    for name, dots in (("Validation perplexity", 1), (further[0], 1), (further[1], 0)):
        assert figures[name].locator("path.dot").count() == dots
    figures[further[0]].locator("svg[aria-roledescription=plot]").scroll_into_view_if_needed()
    before = figures[further[0]].screenshot()
    page.add_style_tag(content=".dot { display: none; }")
    assert figures[further[0]].screenshot() != before  # it was to be seen
    page.locator("#zoom-in").click()
    assert figures[further[0]].locator("path.dot").count() == 0


def test_stages_are_marked_with_their_intervals_and_listed(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "staged")
    step = FoundStep(40.0, (30.0, 50.0), (30.0, 50.0), probability=0.97, before=2.0, after=1.0)
    stage = FoundStage(40, (30, 50), 0.97, {"loss": step, "all VO stable rank": step})
    (run / "stages.json").write_text(json.dumps(watch.StagesFound((stage,), ("loss",), 120).to_dict()))
    page = open_page(write_report(open(run), run / "report.html"))
    assert table_of(page, "#found-here") == [["1", "40", "4", "30 to 50", "0.97", "loss, all VO stable rank"]]
    assert page.locator("#ranks-here .rules rect").count() == 2
    assert "1 stage" in page.locator(".story").inner_text()


def test_a_run_that_was_truncated_shows_what_remains_at_each_rank(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path], tmp_path: Path
) -> None:
    assert open_page(tracked_page).locator("#remains").count() == 0
    shutil.copytree(tracked["unit"], tmp_path / "unit")
    points = [{"rank": rank, "gain": gain} for rank, gain in ((1, 0.5), (2, 0.9), (8, 1.0))]
    curves = [
        {"group": group, "method": method, "functional_rank": 5, "full_rank": 40, "points": points}
        for group, method in (("KQ", "plain"), ("all", "plain"), ("all", "weighted"))
    ]
    (tmp_path / "unit" / "truncation.json").write_text(
        json.dumps({"curves": curves, "gain": 0.95, "measured_on": "48 training examples"})
    )
    page = open_page(write_report(open(tmp_path / "unit"), tmp_path / "page.html"))
    assert page.locator(f"#remains {PLOTS}").count() == 2
    told = page.locator("#remains").inner_text()
    assert "keeps 95 % of the gain, of the loss on 48 training examples: 5 of 40 (KQ)" in told
    assert "5 of 40 (all), 5 of 40 (all, weighted)" in told


def test_a_history_lies_beside_its_run_and_is_grey_where_it_is_noise(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    """The record itself stands for its history, with noise in its first measured steps."""
    run = watch.load(tracked["unit"])
    history = shutil.copytree(tracked["unit"], tmp_path / "history")
    lines = read_lines(history / "ranks.jsonl")
    for place, line in enumerate(lines):
        for product in ("KQ", "VO"):
            share = 0.9 if place < 4 else 0.25
            line[product]["noise_share"] = [[share] * len(one) for one in line[product]["stable_rank"]]
            line[product]["stable_rank"] = [
                [rank * (20 if place < 4 else 1.02) for rank in one] for one in line[product]["stable_rank"]
            ]
    write_rows(history / "ranks.jsonl", lines)
    page = open_page(write_report(open([tracked["unit"], history]), tmp_path / "page.html"))
    names = page.locator("#run option").all_inner_texts()
    assert sorted(names) == ["history", "unit"]
    caption = page.locator("#runs figcaption").first.inner_text()
    clear = len(run.finite_steps) - 4
    assert f"At the {clear} steps that are not grey" in caption
    assert "differ by at most 2 %" in caption
    assert set(page.locator("#runs .plot-key").first.locator("span").all_inner_texts()) == set(names)
    assert page.locator("#runs .lines .dashed").count() == 2
    page.select_option("#run", label="unit")
    assert page.locator("#ranks .greyed rect").count() == 0
    for line in lines:
        line["VO"]["noise_share"] = [[0.25] * len(one) for one in line["VO"]["stable_rank"]]
    write_rows(history / "ranks.jsonl", lines)
    assert len(watch.load(history).noisy_steps) == 4 - int(lines[0]["step"] == 0)  # one product's is enough
    page.select_option("#run", label="history")
    assert page.locator("#ranks .greyed rect").count() == 8
    assert "Grey: rounding" in page.locator("#ranks figcaption").first.inner_text()
