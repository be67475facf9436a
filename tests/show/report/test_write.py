"""Writing the page: where it goes, what it says, and what is refused with one sentence."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankrise.commands import main
from rankrise.foundations.errors import RankriseError
from rankrise.runs import ToyRun, open
from rankrise.show.report import write_report
from rankrise.show.report.toy.gather import gather


def payload_of(page: Path) -> Any:
    found = re.search(
        r'<script type="application/json" id="payload">(.*?)</script>',
        page.read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert found is not None
    return json.loads(found.group(1))


def test_the_payload_carries_the_run_s_numbers(run: ToyRun, tmp_path: Path) -> None:
    (carried,) = payload_of(write_report([run], tmp_path / "page.html"))["runs"]
    seed, stages = carried["seeds"]["0"], run.stages(0)
    assert [stage["time"] for stage in seed["stages"]] == [stage.time for stage in stages]
    assert [stage["loss"] for stage in seed["stages"]] == [stage.loss for stage in stages]
    assert [dict(stage["point"]) for stage in seed["stages"]] == [
        {index: float(stage.point[index]) for index in stage.support} for stage in stages
    ]
    for alpha, carried_flow in zip(run.settings.alphas, seed["flows"], strict=True):
        flow = run.flow(0, alpha)
        times = np.linspace(0, 0.999 * float(flow.times[-1]), 97)
        exact = flow.at(flow.times.new_tensor(times)).numpy()
        for coordinate, kept in enumerate(carried_flow["curves"]):
            drawn = np.interp(times, [carried_flow["times"][index] for index in kept[::2]], kept[1::2])
            assert np.abs(drawn - exact[:, coordinate]).max() < 2e-3 * np.ptp(exact)


def test_a_coordinate_that_comes_and_goes_is_switched_off_and_on(run: ToyRun) -> None:
    for carried in gather(run)["seeds"]["0"]["descents"]:
        for times, first in zip(carried["switches"], carried["activation"], strict=True):
            assert times == sorted(times)
            assert (times[0] if times else None) == pytest.approx(first)


def test_by_default_the_page_lies_in_its_run_and_the_command_says_where(
    copy_of: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of("mine").folder
    main(["report", str(folder)])
    assert str(folder / "report.html") in capsys.readouterr().out
    main(["report", str(folder), "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert printed == {
        "page": str(folder / "report.html"),
        "bytes": (folder / "report.html").stat().st_size,
        "runs": [str(folder)],
        "pages": [
            {
                "page": str(folder / "report.html"),
                "bytes": (folder / "report.html").stat().st_size,
                "runs": ["mine"],
                "unfinished": [],
            }
        ],
    }


def test_the_command_names_every_page_every_run_and_those_not_finished(
    run: ToyRun, tracked: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "runs"
    for name in ("done", "going"):
        shutil.copytree(run.folder, folder / name)
    (folder / "going" / "seed-0" / "full.safetensors").unlink()
    main(["report", str(folder), str(tracked["unit"])])
    first, second = capsys.readouterr().out.splitlines()
    assert str(tmp_path / "report.html") in first
    assert first.endswith("It shows 2 runs: done, going (not finished).")
    assert str(tmp_path / "report-tracked.html") in second
    assert second.endswith("It shows unit.")
    main(["report", str(folder), str(tracked["unit"]), "--json"])
    pages = json.loads(capsys.readouterr().out)["pages"]
    assert [(Path(page["page"]).name, page["runs"], page["unfinished"]) for page in pages] == [
        ("report.html", ["done", "going"], ["going"]),
        ("report-tracked.html", ["unit"], []),
    ]


def test_the_page_of_several_runs_leaves_that_of_the_first(
    copy_of: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (copy_of(name).folder for name in ("first", "second"))
    main(["report", str(first)])
    alone = (first / "report.html").read_bytes()
    main(["report", str(first), str(second)])
    assert (first / "report.html").read_bytes() == alone
    assert str(first.parent / "report.html") in capsys.readouterr().out
    monkeypatch.chdir(first)
    main(["report", ".", str(second), "--json"])
    assert json.loads(capsys.readouterr().out)["page"] == "../report.html"


def test_several_runs_and_an_out_file(run: ToyRun, copy_of: Any, tmp_path: Path) -> None:
    page = tmp_path / "folder" / "both.html"
    main(["report", str(run.folder), str(copy_of("other").folder), "--out", str(page)])
    assert [one["name"] for one in payload_of(page)["runs"]] == ["report-run", "other"]


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["report", str(tmp_path)])
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "is not a run" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "file", ["flow-1e-8.safetensors", "stages.json", "full.safetensors", "comparison.json"]
)
def test_a_damaged_run_is_refused_and_an_earlier_page_kept(copy_of: Any, file: str) -> None:
    run = copy_of("damaged")
    page = write_report([run], run.folder / "report.html")
    before = page.read_bytes()
    path = run.folder / "seed-0" / file
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(RankriseError, match=rf"{re.escape(file)} is damaged"):
        write_report(open(run.folder), page)
    assert page.read_bytes() == before


def test_a_folder_is_not_written_over(run: ToyRun, tmp_path: Path) -> None:
    with pytest.raises(RankriseError, match="is a folder"):
        write_report([run], tmp_path)


def test_an_unfinished_run_says_what_is_missing(copy_of: Any) -> None:
    folder = copy_of("partial").folder
    for name in ("full.safetensors", "strict-minima.safetensors"):
        (folder / "seed-0" / name).unlink()
    text = write_report(open(folder), folder / "page.html").read_text(encoding="utf-8")
    assert all(fact in text for fact in ("not finished", "seed-0/full", "seed-0/strict-minima"))


def test_a_run_that_has_only_begun_has_a_page_too(run: ToyRun, tmp_path: Path) -> None:
    (tmp_path / "begun").mkdir()
    shutil.copy(run.folder / "run.json", tmp_path / "begun" / "run.json")
    text = write_report(open(tmp_path / "begun"), tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Nothing has been computed yet" in text


def test_the_page_names_no_other_address(run: ToyRun, tmp_path: Path) -> None:
    text = write_report([run], tmp_path / "page.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[^\s\"'<]*", text)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(link|img|iframe)\b|@import|url\((?!#)(?!\$)", text)
