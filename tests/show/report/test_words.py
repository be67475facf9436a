"""The page without a browser: where it goes, its sentences and its tables."""

import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tracked_runs import changed, write_rows

from rankrise import RankriseError, watch
from rankrise.claims import Claim, Verdict, check_claims
from rankrise.commands import main
from rankrise.record.lines import read_lines
from rankrise.runs import ToyRun, open
from rankrise.runs.toy.curves import ACTIVE
from rankrise.show.report import tracked_story, write_report
from rankrise.show.report.claims_section import claims_section, tally
from rankrise.show.report.settings_tables import settings_tables
from rankrise.show.report.toy import gather
from rankrise.show.report.tracked_story import chapters, stage_sentences
from rankrise.watch.types import FoundStage


def test_the_command_writes_a_page_for_each_kind_of_run_and_names_all_runs(
    run: ToyRun, copy_of: Any, tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    going = copy_of("going").folder
    (going / "seed-0" / "full.safetensors").unlink()
    main(["report", str(going)])
    assert f"is at {going / 'report.html'} (" in capsys.readouterr().out
    out = tmp_path / "new" / "my page.html"
    arguments = ["report", str(going), str(copy_of("done").folder), str(tracked["unit"]), "--out", str(out)]
    main(arguments)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith("It shows 2 runs: going (not finished), done.")
    assert second.endswith("It shows unit.")
    main([*arguments, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert (printed["page"], printed["bytes"]) == (str(out), out.stat().st_size)
    assert [(Path(page["page"]).name, page["runs"], page["unfinished"]) for page in printed["pages"]] == [
        ("my page.html", ["going", "done"], ["going"]),
        ("my page-tracked.html", ["unit"], []),
    ]
    toy, transformer = (Path(page["page"]).read_text() for page in printed["pages"])
    assert '<a href="my%20page-tracked.html">Transformers →</a>' in toy
    assert '<a href="my%20page.html">The toy →</a>' in transformer
    assert "This page shows 2 toy runs. The other page" in toy
    assert "seed-0/full is missing" in toy


def test_ordinary_mistakes_are_refused_and_nothing_is_written(run: ToyRun, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for path, named in ((tmp_path, "is a folder"), (tmp_path / "run.json", ".html")):
        with pytest.raises(RankriseError, match=named):
            write_report([run], path)
    assert (tmp_path / "run.json").read_text() == "{}"


def test_a_page_names_no_other_address(toy_page: Path, tracked_page: Path) -> None:
    for page in (toy_page, tracked_page):
        text = page.read_text(encoding="utf-8")
        assert set(re.findall(r"https?://[^\s\"'<]*", text)) <= {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<(link|img|iframe)\b|@import|url\((?!#)(?!\$)", text)


def test_a_coordinate_that_comes_and_goes_is_switched_on_and_off(run: ToyRun) -> None:
    (carried,) = gather(run)["seeds"]["0"]["descents"][-1:]
    descent = run.descent(0, run.settings.alphas[-1], run.settings.other_steps[-1])
    active = (descent.values.abs() >= ACTIVE).numpy()
    for times, first, column in zip(
        carried["switches"], descent.activation_times.tolist(), active.T, strict=True
    ):
        assert times == sorted(times)
        assert (times[0] if times else np.inf) == pytest.approx(first)
        assert len(times) % 2 == column[-1]  # on at the end or not


@pytest.mark.parametrize(
    ("peak", "course"),
    [(1.2, " via 2.40 (epoch "), (1.05, " to 2.00 "), (0.96, " to 2.00 "), (0.5, " via 1.00 (")],
)
def test_the_story_names_the_turning_points_of_a_rank(
    tracked: dict[str, Path], tmp_path: Path, peak: float, course: str
) -> None:
    run = changed(tracked["unit"], tmp_path / "run")
    rows = read_lines(run / "ranks.jsonl")
    for place, row in enumerate(rows):
        rank = 2 * peak if place == len(rows) // 2 else 2.0
        row["KQ"]["stable_rank"] = np.full_like(row["KQ"]["stable_rank"], rank).tolist()
    write_rows(run / "ranks.jsonl", rows)
    (chapter,) = chapters(open(run))
    assert f"goes from 2.00{course}" in " ".join(chapter.came_out)
    assert chapter.done.startswith("<strong>CIFAR-10</strong>: ")
    assert "cifar10" not in chapter.done


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ((), "We found no stage in the loss and ranks."),
        ((40,), "1 stage in the loss and ranks, at step 40."),
        ((10, 40, 90), "3 stages in the loss and ranks, at steps 10, 40 and 90."),
        (range(10, 80, 10), "7 stages in the loss and ranks, from step 10 to step 70."),
    ],
)
def test_the_story_begins_with_the_stages(
    tracked: dict[str, Path], monkeypatch: pytest.MonkeyPatch, steps: Sequence[int], words: str
) -> None:
    stages = tuple(FoundStage(step, (step - 1, step + 1), 1.0, {}) for step in steps)
    found = watch.StagesFound(stages, ("loss", "all KQ stable rank"), 120)
    monkeypatch.setattr(tracked_story, "found_stages", lambda _: found)
    (run,) = open(tracked["unit"])
    assert stage_sentences(run)[0].endswith(words)
    (chapter,) = chapters([run])
    assert words in chapter.answer


@pytest.mark.parametrize(
    ("having", "words"),
    [((), "none of the 3 runs."), ((2,), "1 of the 3 runs (hard)."), ((0, 1, 2), "each of the 3 runs.")],
)
def test_the_story_says_which_runs_have_stages(
    tracked: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    having: tuple[int, ...],
    words: str,
) -> None:
    names = ("unit", "again", "hard")
    runs = open([changed(tracked[name], tmp_path / name, recipe={"data": "cifar10"}) for name in names])
    stage = (FoundStage(40, (30, 50), 0.97, {}),)
    found = {name: watch.StagesFound(stage if at in having else (), (), 9) for at, name in enumerate(names)}
    monkeypatch.setattr(tracked_story, "found_stages", lambda run: found[run.name])
    (chapter,) = chapters(runs)
    assert chapter.answer.endswith(f"Stages were found in {words}")


def test_what_runs_have_in_common_stands_once() -> None:
    info = {"command": "train", "machine": {"processors": 2}, "versions": {"torch": "2.13.0"}}
    both = [(name, info | {"note": name}, {"heads": 4, "seed": seed}) for seed, name in enumerate(("a", "b"))]
    alone, together = settings_tables(both[:1]), settings_tables(both)
    for fact in ("<pre>train</pre>", "<dd>2.13.0</dd>", "<dt>heads</dt><dd>4</dd>"):
        assert alone.count(fact) == together.count(fact) == 1
        assert together.index(fact) < together.index(">a</h3>")
    for seed in (0, 1):
        assert together.count(f"<dt>seed</dt><dd>{seed}</dd>") == 1
    assert "All runs" not in alone


def test_verdicts_are_counted_by_source_and_what_failed_is_named(
    tracked: dict[str, Path], run: ToyRun, tmp_path: Path
) -> None:
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
    assert tally([*mixed, *own]) == f"Verdicts on the paper’s claims: {counts}, 2 not judged."
    for opened in (open(tracked["unit"]), [run]):
        page = write_report(opened, tmp_path / "page.html").read_text()
        words = escape(tally(check_claims(opened)))
        assert f'<p class="tally">{words} <a href="#claims">' in page.split("<h2>")[0]
