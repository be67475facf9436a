"""Leading singular values through training, on the page of tracked runs: the record's, of the chosen head."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from pages import Open, plain, table_of

from rankrise import watch
from rankrise.runs import Study, open
from rankrise.show.report import write_report
from rankrise.show.report.tracked import gather


def ends(values: np.ndarray) -> list[list[float]]:
    """Of curves [steps, indices] what the table beneath a plot says of each line."""
    return [[curve[0], curve[-1], curve.min(), curve.max()] for curve in values.T]


def test_the_values_are_those_of_the_chosen_head_or_means_over_heads(
    open_page: Open, tracked_page: Path, tracked: dict[str, Path]
) -> None:
    page, run = open_page(tracked_page), watch.load(tracked["unit"])
    figure = page.locator("#leading figure").nth(1)
    figure.locator("summary").click()
    figure.locator("tbody tr").first.wait_for()

    def shown() -> list[list[float]]:
        rows = table_of(page, "#leading figure:nth-child(2)")
        assert [row[0] for row in rows] == [f"singular value {index}" for index in range(1, 5)]
        return [[plain(cell) for cell in row[1:]] for row in rows]

    assert np.array(shown()) == pytest.approx(np.array(ends(run.top("VO").mean(axis=(1, 2)))), rel=2e-3)
    assert "All layers, mean over heads" in figure.locator("figcaption").inner_text()
    page.locator("#heat-VO-2-1").click()
    assert np.array(shown()) == pytest.approx(np.array(ends(run.top("VO")[:, 2, 1])), rel=2e-3)
    assert "layer 3, head 2: the 4 largest values" in figure.locator("figcaption").inner_text()


def test_a_single_moment_has_no_course(open_page: Open, tracked: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    first = (run / "ranks.jsonl").read_text().splitlines()[0]
    (run / "ranks.jsonl").write_text(f"{first}\n")
    page = open_page(write_report(open(run), tmp_path / "page.html"))
    assert page.locator("#leading").is_hidden()


def test_where_heads_have_no_room_layers_have_their_means(
    tracked: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watch.load(tracked["unit"])
    monkeypatch.setattr(gather, "found_stages", lambda _: [])
    whole = gather.gather(Study(None, (run,)), run)["leading"]
    monkeypatch.setattr(gather, "LEADING_NUMBERS", 12 * 4 * 20)
    merged = gather.gather(Study(None, (run,)), run)["leading"]
    assert (whole["merged"], merged["merged"]) == (False, True)
    assert len(whole["steps"]) == len(run.measured) == 60
    assert len(merged["steps"]) == 40
    last = run.top("KQ")[-1]
    for layer, (heads, (mean,)) in enumerate(zip(whole["values"]["KQ"], merged["values"]["KQ"], strict=True)):
        assert [[curve[-1] for curve in head] for head in heads] == pytest.approx(last[layer], rel=1e-3)
        assert [curve[-1] for curve in mean] == pytest.approx(last[layer].mean(axis=0), rel=1e-3)
