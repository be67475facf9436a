"""The page of tracked runs without a browser: its sentences, its tables, its size, and where it goes."""

import json
import re
import shutil
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import pytest
from torch import nn
from tracked_runs import changed, without_ranks, write_rows

from rankrise import RankriseError, watch
from rankrise.claims import Claim, Verdict, check_claims
from rankrise.commands import main
from rankrise.record.lines import read_lines
from rankrise.runs import Study, ToyRun, TrackedRun, open
from rankrise.show.report import write_report
from rankrise.show.report.claims_section import claims_section, tally
from rankrise.show.report.settings_tables import settings_tables
from rankrise.show.report.tracked.gather import gather, gather_all
from rankrise.show.report.tracked.story import chapters
from rankrise.watch.types import FoundStage


@pytest.mark.parametrize(
    ("peak", "told"),
    [(1.2, " via 2.40 (epoch "), (1.05, " to 2.00 "), (0.96, " to 2.00 "), (0.5, " via 1.00 (")],
)
def test_the_story_tells_of_a_rank_that_rises_and_falls(
    tracked: dict[str, Path], tmp_path: Path, peak: float, told: str
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    rows = read_lines(run / "ranks.jsonl")
    for place, row in enumerate(rows):
        rank = 2 * peak if place == len(rows) // 2 else 2.0
        row["KQ"]["stable_rank"] = np.full_like(row["KQ"]["stable_rank"], rank).tolist()
    write_rows(run / "ranks.jsonl", rows)
    (chapter,) = chapters(open(run))
    assert f"goes from 2.00{told}" in " ".join(chapter.came_out)


@pytest.mark.parametrize("moved", [False, True])
def test_weights_that_have_not_changed_and_one_measurement_have_no_course(
    tmp_path: Path, moved: bool
) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
    with watch.RankTracker(model, tmp_path) as tracker:
        for step in range(1, 2 if moved else 4):
            if moved:
                model.layers[0].self_attn.in_proj_weight.data[:, 0] += 1
                model.layers[0].self_attn.out_proj.weight.data[:, 0] += 1
            tracker.step(step)
            tracker.flush()
    (chapter,) = chapters(open(tmp_path))
    told = " ".join(chapter.came_out)
    if moved:
        assert told.count("(mean over heads) at step 1, the only measurement.") == 2
    else:
        assert told.count("</sup> has not changed.") == 2
    assert "goes from" not in told
    assert ("energy" in told) == moved


def test_what_broke_a_run_off_ends_with_one_full_stop(tracked: dict[str, Path], tmp_path: Path) -> None:
    stopped = {"finished": None, "stopped": "mend it, and run the command again."}
    (chapter,) = chapters(open(changed(tracked["unit"], tmp_path / "run", **stopped)))
    (sentence,) = chapter.unfinished
    assert "run the command again. Its last" in sentence


def test_a_finished_run_without_its_ranks_begins_with_what_is_missing(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    (run / "ranks.jsonl").unlink()
    (chapter,) = chapters(open(run))
    assert chapter.answer.startswith("<strong>ROWS ARE MISSING: ranks.jsonl has 0 of the ")
    rows = read_lines(tracked["unit"] / "ranks.jsonl")
    since = without_ranks(rows, 0)
    write_rows(run / "ranks.jsonl", rows)
    info = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(info | {"sizes": {}}))
    (chapter,) = chapters(open(run))
    assert (
        f"<strong>Ranks are nan from step {since} on, since weights are not finite.</strong>"
        in chapter.answer
    )


def test_the_data_set_is_named_once(tracked: dict[str, Path]) -> None:
    (chapter,) = chapters(open(tracked["unit"]))
    assert chapter.done.startswith("<strong>CIFAR-10</strong>: ")
    assert "cifar10" not in chapter.done


def test_what_runs_have_in_common_is_told_once() -> None:
    info = {"command": "train", "machine": {"processors": 2}, "versions": {"torch": "2.13.0"}}
    both = [(name, info | {"note": name}, {"heads": 4, "seed": seed}) for seed, name in enumerate(("a", "b"))]
    alone, together = settings_tables(both[:1]), settings_tables(both)
    for fact in ("<pre>train</pre>", "<dd>2.13.0</dd>", "<dt>heads</dt><dd>4</dd>"):
        assert alone.count(fact) == together.count(fact) == 1
        assert together.index(fact) < together.index(">a</h3>")
    for seed in (0, 1):
        assert together.count(f"<dt>seed</dt><dd>{seed}</dd>") == 1
    assert "All runs" not in alone
    other = settings_tables([("a", {"command": "train"}, {}), ("b", {"command": "sweep"}, {})])
    assert other.index(">a</h3>") < other.index("<pre>train</pre>") < other.index(">b</h3>")
    assert settings_tables([("a", {}, {"seed": 1}), ("b", {}, {})]).count("<dt>seed</dt>") == 1


def test_settings_are_written_as_a_recipe_has_them() -> None:
    values = {
        "stream": False,
        "products": ("KQ", "VO"),
        "scale": 1.0,
        "tolerance": 1e-5,
        "epochs": [0.5, 1.0],
    }
    shown = settings_tables([("a", {}, values)])
    for fact in (
        "stream</dt><dd>no",
        "products</dt><dd>KQ, VO",
        "scale</dt><dd>1<",
        "<dd>1e-5<",
        "<dd>0.5, 1<",
    ):
        assert fact in shown


def test_a_large_model_s_page_stays_small(tracked: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every head of 32 layers of 32, measured 4000 times: as many numbers as the page has room for."""
    run = watch.load(tracked["unit"])
    layer = run.layers[0] | {"tracked_heads": list(range(32)), "heads": 32, "d_model": 4096, "d_head": 128}

    class Large(TrackedRun):
        measured = spectra_steps = np.arange(1, 4001)

        def stable_rank(self, product: str) -> np.ndarray:
            return np.full((4000, 32, 32), np.pi)

        entropy_rank = noise_share = noise_rank = stable_rank

        def energy_rank(self, product: str) -> np.ndarray:
            return np.full((4000, 32, 32, 3), 128.0)

        def top(self, product: str) -> np.ndarray:
            return np.full((4000, 32, 32, 8), np.pi * 1e-5)

        def spectrum(self, product: str, step: int | None = None) -> list[np.ndarray]:
            return [np.full((32, 128 if step is None else 256), np.pi)] * 32

        def steps(self) -> dict[str, np.ndarray]:
            steps = np.arange(1, 100_001)
            return {"step": steps, "loss": np.pi * steps}

    member = Large(run.folder, run.info | {"layers": [layer] * 32})
    monkeypatch.setattr("rankrise.show.report.tracked.gather.found_stages", lambda _: [])
    assert len(json.dumps(gather(Study(None, (member,)), member), separators=(",", ":"))) < 4e6


def test_a_page_replaces_nothing_but_a_page(tracked: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(RankriseError, match=r"run.json does not end in .html, so no browser would open it"):
        write_report(open(tracked["unit"]), tmp_path / "run.json")
    assert (tmp_path / "run.json").read_text() == "{}"


def test_runs_of_two_kinds_have_two_pages_that_link_to_each_other(
    tracked: dict[str, Path], run: ToyRun, tmp_path: Path
) -> None:
    path = write_report([*open(tracked["unit"]), run], tmp_path / "my page.html")
    assert sorted(page.name for page in tmp_path.iterdir()) == ["my page-toy.html", "my page.html"]
    pages = path.read_text(), (tmp_path / "my page-toy.html").read_text()
    assert '<a href="my%20page-toy.html">The toy →</a>' in pages[0]
    assert '<a href="my%20page.html">Transformers →</a>' in pages[1]
    told = [re.sub("<[^>]+>", "", page) for page in pages]
    assert (
        "This page shows 1 transformer run. The other page of this report, my page-toy.html, shows 1 toy run"
        in told[0]
    )
    assert "The other page of this report, my page.html, shows 1 transformer run: unit." in told[1]
    assert all("The report is 2 files" in page and "This page is one file" not in page for page in told)
    alone = write_report([run], path).read_text()
    assert "→</a>" not in alone
    assert "The other page" not in alone
    assert "This page is one file" in alone


def test_the_page_counts_verdicts_names_what_failed_and_says_what_was_not_judged(
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
    counted = (
        "Verdicts on the paper’s claims: 2 hold, 1 does not hold (full weights, one after another), "
        "1 not decided."
    )
    assert tally(mixed) == counted
    assert f"<summary>{counted}</summary>" in claims_section(mixed)
    own = [claim(name, "not judged", "Trained without a recipe.") for name in ("spectra", "low rank")]
    shown = claims_section(own)
    assert tally(own) == "No claim was judged here."
    assert shown.startswith("<p>Not judged on mine. Trained without a recipe.</p><details><summary>No claim")
    assert "Not judged" not in claims_section(mixed)
    assert tally([*mixed, *own]) == counted.replace("1 not decided", "1 not decided, 2 not judged")
    for opened in (open(tracked["unit"]), [run]):
        page = write_report(opened, tmp_path / "page.html").read_text()
        told = escape(tally(check_claims(opened)))
        assert f'<p class="tally">{told} <a href="#claims">' in page.split("<h2>")[0]


def test_the_command_says_where_the_page_is(
    tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["report", str(tracked["unit"]), "--out", str(tmp_path / "page.html"), "--json"])
    assert json.loads(capsys.readouterr().out)["page"] == str(tmp_path / "page.html")


SEARCHED = ("loss", "all KQ stable rank")
"""What a search of a whole record has seen."""


def test_where_no_stage_was_found_the_story_says_what_would_be_missed(
    tracked: dict[str, Path], tmp_path: Path
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    steps = np.arange(1, 1001)
    losses = 2 * steps**-0.2 * np.exp(0.05 * np.random.default_rng(0).standard_normal(1000))
    rows = ({"step": int(step), "loss": loss} for step, loss in zip(steps, losses, strict=True))
    write_rows(run / "steps.jsonl", rows)
    (run / "stages.json").write_text(json.dumps(watch.StagesFound((), SEARCHED, 1000).to_dict()))
    (chapter,) = chapters(open(run))
    assert chapter.answer == (
        "<strong>Loss and ranks show no stage.</strong> Some may be hidden in noise: the loss fluctuates by "
        "about 4.8\u00a0%, and in a test with 40 known stages and noise of that order, the search overlooked "
        "between 14 and 27 of them."
    )


@pytest.mark.parametrize(
    ("searched", "told"),
    [
        (
            ("all KQ stable rank",),
            "The ranks show no stage; the ranks alone were searched: no loss was recorded.",
        ),
        ((), "We cannot tell whether there are stages: no loss was recorded, and "),
    ],
)
def test_a_record_without_a_loss_has_a_page_that_does_not_speak_of_one(
    tracked: dict[str, Path], tmp_path: Path, searched: tuple[str, ...], told: str
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    (run / "steps.jsonl").unlink()
    (run / "stages.json").write_text(json.dumps(watch.StagesFound((), searched, 120).to_dict()))
    (opened,) = open(run)
    assert gather_all([opened])["runs"][0]["about_stages"].startswith(told)
    (chapter,) = chapters([opened])
    assert chapter.answer.startswith(f"<strong>{told}")


@pytest.mark.parametrize(
    ("having", "told"),
    [
        ((), "Stages were found in none of the 3 runs."),
        ((2,), "Stages were found in 1 of the 3 runs (run2)."),
        ((0, 1, 2), "Stages were found in each of the 3 runs."),
    ],
)
def test_the_page_says_in_how_many_of_several_runs_stages_were_found(
    tracked: dict[str, Path], tmp_path: Path, having: tuple[int, ...], told: str
) -> None:
    stage = FoundStage(40, (30, 50), 0.97, {})
    for place in range(3):
        run = shutil.copytree(tracked["unit"], tmp_path / f"run{place}")
        found = watch.StagesFound((stage,) if place in having else (), SEARCHED, 120)
        (run / "stages.json").write_text(json.dumps(found.to_dict()))
    (chapter,) = chapters(open(tmp_path))
    assert chapter.answer.endswith(told)


def test_a_loss_is_searched_where_ranks_were_measured_too_seldom(tmp_path: Path) -> None:
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, batch_first=True), 1)
    with watch.RankTracker(model, tmp_path, schedule=watch.Schedule(often=100, seldom=100)) as tracker:
        for step in range(1, 301):
            tracker.step(step, loss=1 / step)
    run = watch.load(tmp_path)
    few = f"{len(run.measured)} measurements are too few, or too far apart, to show one"
    (chapter,) = chapters([run])
    assert f"<strong>The loss shows no stage; the loss alone was searched: {few}.</strong>" in chapter.answer


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        ((40,), "1 stage, at step 40."),
        ((10, 40, 90), "3 stages, at steps 10, 40 and 90."),
        (range(10, 80, 10), "7 stages, from step 10 to step 70."),
    ],
)
def test_the_page_begins_with_the_stages_that_were_found(
    tracked: dict[str, Path], tmp_path: Path, steps: Sequence[int], told: str
) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    stages = tuple(FoundStage(step, (step - 1, step + 1), 1.0, {}) for step in steps)
    (run / "stages.json").write_text(json.dumps(watch.StagesFound(stages, SEARCHED, 120).to_dict()))
    page = write_report(open(run), tmp_path / "page.html").read_text()
    first = re.search("<p[^>]*>(.*?)</p>", page.split('aria-label="In short"')[1], re.DOTALL)
    assert first is not None
    assert first[1] == f"<strong>Loss and ranks show {told}</strong>"
    assert "<h1>Rank of what was learned: <span>CIFAR-10 (run run)</span></h1>" in page


def test_an_epoch_of_one_step_is_not_told_beside_the_step(tracked: dict[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(tracked["unit"], tmp_path / "run")
    info = json.loads((run / "run.json").read_text())
    info["extra"]["epoch_steps"] = 1
    (run / "run.json").write_text(json.dumps(info))
    rows = read_lines(run / "ranks.jsonl")
    for place, row in enumerate(rows):
        rank = 4.0 if place == len(rows) // 2 else 2.0
        row["KQ"]["stable_rank"] = np.full_like(row["KQ"]["stable_rank"], rank).tolist()
    write_rows(run / "ranks.jsonl", rows)
    (opened,) = open(run)
    assert isinstance(opened, TrackedRun)
    (chapter,) = chapters([opened])
    assert "trained for 120 steps." in chapter.done
    assert f"via 4.00 (step {rows[len(rows) // 2]['step']})" in chapter.came_out[0]
    assert gather(Study("cifar10", (opened,)), opened)["epoch_steps"] is None
