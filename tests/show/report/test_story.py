"""The page without a browser: its files, sentences and tables."""

import json
import re
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked_runs import changed, write_rows

from rankrise import RankriseError, watch
from rankrise.claims import Claim, Verdict, check_claims
from rankrise.commands import main
from rankrise.record.folder import read_lines
from rankrise.runs import ToyRun, open
from rankrise.runs.toy.run import ACTIVE
from rankrise.show.report import tracked_story, write_report
from rankrise.show.report.claims import claims_section, tally
from rankrise.show.report.page import settings_tables
from rankrise.show.report.toy import gather
from rankrise.watch.types import FoundStage

pytestmark = pytest.mark.slow


def test_the_command_writes_a_page_for_each_kind_of_run(
    run: ToyRun, copy_of: Any, tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    going = copy_of("going").folder
    (going / "seed-0" / "full.safetensors").unlink()
    out = tmp_path / "new" / "my page.html"
    main(
        ["report", str(going), str(copy_of("done").folder), str(tracked["unit"]), "--out", str(out), "--json"]
    )
    printed = json.loads(capsys.readouterr().out)
    assert [(Path(page["page"]).name, page["runs"]) for page in printed["pages"]] == [
        ("my page.html", ["going", "done"]),
        ("my page-tracked.html", ["unit"]),
    ]
    toy, transformer = (Path(page["page"]).read_text() for page in printed["pages"])
    assert '<a href="my%20page-tracked.html">Transformers →</a>' in toy
    assert '<a href="my%20page.html">The toy →</a>' in transformer
    assert "seed-0/full missing" in toy
    for page in (toy, transformer):  # it fetches nothing
        assert set(re.findall(r"https?://[^\s\"'<]*", page)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<(link|img|iframe)\b|@import|url\((?!#)(?!\$)", page)


def test_a_folder_or_a_file_of_another_kind_is_no_place_for_a_page(run: ToyRun, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for path in (tmp_path, tmp_path / "run.json"):
        with pytest.raises(RankriseError, match=re.escape(str(path))):
            write_report([run], path)
    assert (tmp_path / "run.json").read_text() == "{}"


def test_a_coordinate_that_comes_and_goes_is_switched_on_and_off(run: ToyRun) -> None:
    (carried,) = gather(run)["seeds"]["0"]["descents"][-1:]
    descent = run.descent(0, run.settings.alphas[-1], run.settings.other_steps[-1])
    active = (descent.values.abs() >= ACTIVE).numpy()
    firsts = descent.activation_times.tolist()
    for times, first, column in zip(carried["switches"], firsts, active.T, strict=True):
        assert times == sorted(times)
        assert (times[0] if times else np.inf) == pytest.approx(first)
        assert len(times) % 2 == column[-1]  # on at the end or not


@pytest.mark.parametrize(("peak", "course"), [(1.2, " via 2.40 (epoch "), (1.05, " to 2.00 ")])
def test_the_story_names_the_turning_points_of_a_rank(
    tracked: dict[str, Path], tmp_path: Path, peak: float, course: str
) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    rows = read_lines(run / "ranks.jsonl")
    for place, row in enumerate(rows):
        rank = 2 * peak if place == len(rows) // 2 else 2.0
        row["KQ"]["stable_rank"] = np.full_like(row["KQ"]["stable_rank"], rank).tolist()
    write_rows(run / "ranks.jsonl", rows)
    assert f"goes from 2.00{course}" in " ".join(tracked_story.chapters(open(run)))


def test_the_story_begins_with_the_stages(tracked: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    stages = tuple(FoundStage(step, (step - 1, step + 1), 1.0, {}) for step in (10, 40, 90))
    found = {"unit": stages, "again": ()}
    monkeypatch.setattr(
        tracked_story,
        "found_stages",
        lambda run: watch.StagesFound(found[run.name], ("loss", "all KQ stable rank"), 120),
    )
    (answer,) = tracked_story.answers(open([tracked["unit"], tracked["again"]]))
    assert "<strong>We found 3 stages in the loss and ranks, at steps 10, 40, 90.</strong>" in answer
    assert answer.endswith("1 of the 2 runs has stages.")


def test_what_runs_have_in_common_stands_once() -> None:
    info = {"command": "train", "machine": {"processors": 2}, "versions": {"torch": "2.13.0"}}
    both = [(name, info | {"note": name}, {"heads": 4, "seed": seed}) for seed, name in enumerate(("a", "b"))]
    alone, together = settings_tables(both[:1]), settings_tables(both)
    for fact in ("<pre>train</pre>", "<dd>2.13.0</dd>", "<dt>heads</dt><dd>4</dd>"):
        assert alone.count(fact) == together.count(fact) == 1
        assert together.index(fact) < together.index(">a</h3>")
    for seed in (0, 1):
        assert together.count(f"<dt>seed</dt><dd>{seed}</dd>") == 1


def test_verdicts_are_counted_by_source_and_what_failed_is_named(run: ToyRun, toy_page: Path) -> None:
    def claim(name: str, verdict: Verdict, reason: str = "Measured.", part: str = "") -> Claim:
        return Claim(name, "A statement.", "the paper", verdict, reason, (), ("mine",), "", part)

    mixed = [
        claim("support", "holds"),
        claim("spectra", "holds"),
        claim("full weights", "does not hold", part="one after another"),
        claim("low rank", "not decided"),
    ]
    counts = "2 hold, 1 does not hold (full weights, one after another), 1 not decided"
    assert tally(mixed) == f"Verdicts on the paper’s claims: {counts}."
    own = [claim(name, "not judged", "Trained without a recipe.") for name in ("spectra", "low rank")]
    assert tally(own) == "No claim was judged here."
    assert claims_section(own).startswith("<p>Not judged on mine. Trained without a recipe.</p>")
    words = escape(tally(check_claims([run])))
    assert f'<p class="tally">{words} <a href="#claims">' in toy_page.read_text().split("<h2>")[0]
