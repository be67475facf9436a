"""The page of runs that are not as usual: ranks that became nan, weights that stay, a run that goes on."""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pages import Open, table_of
from torch import nn
from tracked_runs import train, without_ranks, write_rows

from rankrise import watch
from rankrise.record.lines import read_lines
from rankrise.runs import open
from rankrise.show.report import write_report

if TYPE_CHECKING:
    pass

PLOTS = "svg[aria-roledescription=plot]"


def test_it_says_since_when_ranks_are_nan_and_to_which_step_they_go(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    rows = read_lines(run / "ranks.jsonl")
    since = without_ranks(rows, 60)
    write_rows(run / "ranks.jsonl", rows)
    losses = ({"step": step, "loss": 1.5 / step if step < 70 else float("nan")} for step in range(1, 121))
    write_rows(run / "steps.jsonl", losses)
    page = open_page(write_report(open(run), tmp_path / "page.html"))
    assert "to 0.02174 (epoch 6.9 (step 69))." in page.locator("#training figcaption").first.inner_text()
    assert "0.0217 (epoch 6.9 (step 69))" in table_of(page, "#runs-here")[0]
    told, last = page.locator(".story").inner_text(), f"epoch 6 (step {watch.load(run).last_finite_step})"
    assert f"Note: ranks are nan from step {since} on, since weights are not finite." in told
    assert " (mean over heads) by epoch 6, the last with ranks." in told
    captions = page.locator("#glance-here figcaption, #ranks figcaption").all_inner_texts()
    assert all(f"t {last}, the last with ranks:" in caption for caption in captions)
    assert "the last step" not in " ".join(captions)


def test_the_last_loss_is_the_record_s_though_points_are_means(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    rows = ({"step": step, "loss": 2.0 + step % 2, "learning_rate": 0.015} for step in range(1, 1001))
    write_rows(run / "steps.jsonl", rows)
    page = open_page(write_report(open(run), tmp_path / "page.html"))
    captions = page.locator("#training figcaption").all_inner_texts()
    assert captions[0].startswith("From 3 to 2. Each point is the mean of 2 recorded.")
    assert captions[1].startswith("0.015 throughout.")
    place = page.locator("#runs th").all_inner_texts().index("last loss")
    assert table_of(page, "#runs-here")[0][place] == "2"


def test_weights_that_did_not_change_have_no_lowest_and_highest_rank(open_page: Open, tmp_path: Path) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 2)
    with watch.RankTracker(model, tmp_path / "run") as tracker:
        for step in (1, 2):
            tracker.step(step)
            tracker.flush()
    page = open_page(write_report(open(tmp_path / "run"), tmp_path / "page.html"))
    captions = page.locator("#glance-here figcaption, #ranks figcaption").all_inner_texts()
    assert captions == ["At the last step, nothing has changed."] * 3


def test_a_run_that_goes_on_says_so_with_its_last_step(open_page: Open, tmp_path: Path) -> None:
    train(tmp_path / "going", steps=20, layers=1, close=False)
    page = open_page(write_report(open(tmp_path / "going"), tmp_path / "page.html"))
    assert (
        "going is not finished: it goes on. Its last measured step is 20"
        in page.locator(".warning").inner_text()
    )
    assert page.locator(".heat button").count() == 4


def test_a_run_that_has_only_begun_has_a_page_too(
    open_page: Open, tracked: dict[str, Path], tmp_path: Path
) -> None:
    shutil.copytree(tracked["unit"], tmp_path / "begun")
    for path in (tmp_path / "begun" / "spectra").glob("step-*"):
        path.unlink()
    for name in ("ranks.jsonl", "steps.jsonl", "stages.json"):
        (tmp_path / "begun" / name).unlink()
    page = open_page(write_report(open(tmp_path / "begun"), tmp_path / "page.html"))
    assert "ROWS ARE MISSING" in page.locator(".story strong").first.inner_text()
    assert "ROWS ARE MISSING" in page.locator("#glance-here figcaption").inner_text()
    assert "no full spectra." in page.locator("#spectra-here").inner_text()
