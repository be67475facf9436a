"""The page of tracked runs in a real browser: its numbers are the record's, and its controls work."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from pages import (
    PLOTS,
    Open,
    check_play,
    check_zoom,
    hover,
    numbers_of,
    plain,
    rows_of,
    slide,
    ticks,
    write_report,
)
from safetensors.torch import save_file
from torch import nn

from rankrise import watch
from rankrise.claims import check_claims
from rankrise.runs import TrackedRun, open
from rankrise.show.report import tracked as page_data

pytestmark = pytest.mark.slow


@pytest.fixture
def unit(tracked: dict[str, Path]) -> TrackedRun:
    return watch.load(tracked["unit"])


def heat(page, product: str) -> np.ndarray:
    """The ranks in the map of heads."""
    cells = page.eval_on_selector_all(
        f".heat button[id^=heat-{product}-]", "all => all.map(one => one.getAttribute('aria-label'))"
    )
    return np.array([plain(cell.split(" rank ")[1]) for cell in cells])


def ends(values: np.ndarray) -> list[float]:
    return [values[0], values[-1], values.min(), values.max()]


def test_the_story_the_heads_and_the_ranks_are_the_record_s(open_page, tracked_page, unit):
    page = open_page(tracked_page)
    assert page.title() == "Gradual rank increase: CIFAR-10"
    story = page.locator(".story").inner_text()
    for fact in ("CIFAR-10", "3 layers", "2 heads", "size 20", "12 epochs"):
        assert fact in story
    for place in (59, 10, 0):
        slide(page, "#step", place)
        for product in ("KQ", "VO"):
            assert heat(page, product) == pytest.approx(unit.stable_rank(product)[place].ravel(), rel=6e-3)
    page.locator("#step").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".steps output").inner_text() == "epoch 0.4 (step 4)"
    page.keyboard.press("End")
    kinds = ["stable", *(f"{share} % energy" for share in (90, 95, 99)), "entropy"]
    assert page.locator("#rank option").all_inner_texts() == kinds
    page.select_option("#rank", "95 % energy")
    ranks = unit.energy_rank("VO")[-1, ..., 1]
    assert heat(page, "VO") == pytest.approx(ranks.ravel(), rel=6e-3)
    assert f"{ranks.mean():.3g} (change of VO)" in page.locator("#glance-here").inner_text()


def test_a_layer_and_a_head_can_be_chosen_and_their_numbers_read(open_page, tracked_page, unit):
    page = open_page(tracked_page)
    assert page.locator("#head").is_disabled()
    page.select_option("#layer", "1")
    shown, ranks = numbers_of(page.locator("#ranks-here figure").nth(1)), unit.stable_rank("VO")[:, 1]
    for name, curve in (("layer 2, mean over heads", ranks.mean(1)), ("layer 2, head 2", ranks[:, 1])):
        assert shown[name] == pytest.approx(ends(curve), rel=2e-3)
    page.locator("#heat-VO-2-1").focus()
    page.keyboard.press("Enter")
    assert (page.input_value("#layer"), page.input_value("#head")) == ("2", "1")
    assert page.locator("#heat-VO-2-1").get_attribute("aria-pressed") == "true"
    page.locator("#normalised").uncheck()
    slide(page, "#step", 20)  # step 42, nearest to 40
    for index, numbers in enumerate(numbers_of(page.locator("#leading figure").nth(1)).values()):
        assert numbers == pytest.approx(ends(unit.top("VO")[:, 2, 1, index]), rel=2e-3)
    spectra = page.locator("#spectra-here figure").nth(1)
    assert "change at epoch 4 (step 40)" in spectra.locator(".plot-key").inner_text()
    shown = numbers_of(spectra)
    assert shown["initial product"][0] == pytest.approx(float(unit.spectrum("VO")[2][1, 0]), rel=1e-3)
    for step in unit.spectra_steps:
        largest = float(unit.spectrum("VO", int(step))[2][1, 0])
        assert shown[f"change at epoch {step / 10:g} (step {step})"][0] == pytest.approx(largest, rel=1e-3)


def test_time_is_linear_or_logarithmic_zooms_and_plays(open_page: Open, tracked_page: Path) -> None:
    page = open_page(tracked_page)
    plots = f"#ranks-here figure:not([hidden]) {PLOTS}, #training-here figure:not([hidden]) {PLOTS}"
    logarithmic = ticks(page, plots)
    page.locator("#logTime").uncheck()
    assert all(before != after for before, after in zip(logarithmic, ticks(page, plots), strict=True))
    check_zoom(page, plots)
    check_play(page, "#step")
    page.select_option("#layer", "0")
    plot = page.locator("svg[aria-label='Stable rank of the change of KQ']")
    line, rank, moment = hover(page, plot, plot.locator(".labels text").first)
    assert [line.split(",")[0], rank.split()[0], moment.split()[0]] == ["layer 1", "stable", "epoch"]


def test_several_runs_are_chosen_between_listed_and_judged(open_page, page_of_all, tracked):
    page = open_page(page_of_all)
    assert page.locator("#run option").all_inner_texts() == ["unit", "again", "small", "hard", "wander"]
    rows = {row[0]: row for row in rows_of(page, "#runs-here")}
    for name, path in tracked.items():
        last = watch.load(path).stable_rank("KQ")[-1]
        assert plain(rows[name][6]) == pytest.approx(float(last.mean()), rel=6e-3)
    page.locator("#runs-here button", has_text="show").nth(2).click()
    assert page.input_value("#run") == "2"
    small = watch.load(tracked["small"]).stable_rank("VO")[-1]
    assert heat(page, "VO") == pytest.approx(small.ravel(), rel=6e-3)

    claims = check_claims(open(list(tracked.values())))
    page.locator("#claims > details > summary").click()
    judged = page.eval_on_selector_all(
        ".judged",
        """all => all.flatMap(one => [...one.querySelectorAll(".verdicts > tbody > tr")].map(
            row => [one.querySelector("h3").textContent.toLowerCase(),
                    row.cells[0].textContent, row.cells[1].textContent]))""",
    )
    assert judged == [[claim.name, claim.subject, claim.verdict] for claim in claims]


def test_a_history_of_matrices_is_grey_while_its_changes_are_rounding_noise(open_page, tmp_path):
    weights = {name: 0.02 * torch.randn(40, 30) for name in ("mlp.up", "mlp.down", "embed")}
    for step in (0, 1, 2, 100, 200):  # at first below the spacing of bfloat16
        for weight in weights.values():
            weight += 2e-5 * step * torch.outer(torch.randn(40), torch.randn(30))
        place = tmp_path / "series" / f"step{step}"
        place.mkdir(parents=True)
        save_file({name: one.bfloat16() for name, one in weights.items()}, place / "model.safetensors")
    run = watch.history(tmp_path / "series", tmp_path / "run", matrices="*")
    page = open_page(write_report(open(run.folder), tmp_path / "page.html"))
    glance = page.locator("#glance-here figcaption").inner_text()
    mean = np.mean([run.stable_rank(name)[-1] for name in run.matrices])
    assert f"{mean:.3g} (change of matrices)" in glance
    assert page.locator("#ranks .greyed rect").count() == len(run.noisy_steps) == 2
    assert page.locator("#ranks .lines path").count() == 3
    for hidden in ("#layer", "#leading"):
        assert not page.locator(hidden).is_visible()
    assert page.locator("#heads-here").inner_text() == "This run has no heads."
    assert "No claim is about these runs" in page.locator("#claims").inner_text()


def test_a_run_without_ranks_or_changes_opens_and_says_so(open_page, tracked, tmp_path):
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 1, 8, batch_first=True), 1)
    tracker = watch.RankTracker(model, tmp_path / "still")
    for step in (1, 2):
        tracker.step(step)
    tracker.flush()
    page = open_page(write_report(open(tmp_path / "still"), tmp_path / "page.html"))
    captions = page.locator("#glance-here figcaption, #ranks figure:visible figcaption").all_inner_texts()
    assert captions == ["At step 2, nothing has changed."] * 3
    assert "still is not finished." in page.locator(".warning").inner_text()
    tracker.close()
    begun = shutil.copytree(tracked["unit"], tmp_path / "begun")
    (begun / "ranks.jsonl").unlink()
    page = open_page(write_report(open(begun), tmp_path / "page.html"))
    for place in (".story strong", "#glance-here figcaption"):
        assert page.locator(place).first.inner_text() == "Nothing has been measured yet."


def test_a_large_model_s_page_stays_small(unit, tmp_path, monkeypatch):
    """Every head of 32 layers of 32, measured 1000 times."""
    layer = unit.layers[0] | {"tracked_heads": list(range(32)), "heads": 32, "d_model": 4096, "d_head": 128}

    class Large(TrackedRun):
        measured = spectra_steps = np.arange(1, 1001)

        def stable_rank(self, product: str) -> np.ndarray:
            return np.full((1000, 32, 32), np.pi)

        entropy_rank = noise_share = noise_rank = stable_rank

        def energy_rank(self, product: str) -> np.ndarray:
            return np.full((1000, 32, 32, 3), 128.0)

        def top(self, product: str) -> np.ndarray:
            return np.full((1000, 32, 32, 8), np.pi * 1e-5)

        def spectrum(self, product: str, step: int | None = None) -> list[np.ndarray]:
            return [np.full((32, 128 if step is None else 256), np.pi)] * 32

        def steps(self) -> dict[str, np.ndarray]:
            return {"step": np.arange(1, 100_001), "loss": np.pi * np.arange(1, 100_001)}

    run = Large(unit.folder, unit.info | {"layers": [layer] * 32})
    monkeypatch.setattr(page_data, "found_stages", lambda _: [])
    assert len(json.dumps(page_data.payload([run]), separators=(",", ":"))) < 5e6
