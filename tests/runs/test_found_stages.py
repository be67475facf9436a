"""The stages of an opened run: found once, kept only on request, and found anew when out of date."""

import json
from pathlib import Path

import pytest
from made_runs import everything_in, tracked

from rankrise import runs, watch
from rankrise.commands import main
from rankrise.watch.types import FoundStage, FoundStep


def test_found_stages_are_those_of_find_stages_and_searched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watch.load(tracked(tmp_path, steps=400))
    found = runs.found_stages(run)
    assert found == watch.find_stages(run)
    assert [stage.interval[0] <= 200 <= stage.interval[1] for stage in found] == [True]
    monkeypatch.setattr("rankrise.runs._stages.find_stages", None)
    assert runs.found_stages(run) is found


def test_the_command_keeps_stages_only_when_told_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tracked(tmp_path / "run", steps=400)
    before = everything_in(folder)
    main(["watch", str(folder), "--json"])
    told = json.loads(capsys.readouterr().out)["stages"]
    assert everything_in(folder) == before
    main(["watch", str(folder), "--json", "--keep_stages"])
    assert json.loads(capsys.readouterr().out)["stages"] == told
    assert everything_in(folder).keys() - before.keys() == {folder / "stages.json"}
    assert json.loads((folder / "stages.json").read_text()) == told


def test_kept_stages_are_read_back_while_they_are_of_the_whole_record(tmp_path: Path) -> None:
    folder = tracked(tmp_path, steps=40)
    step = FoundStep(20.0, (18.0, 22.0), (19.0, 21.0), probability=0.97, before=2.0, after=float("nan"))
    kept = watch.StagesFound((FoundStage(20, (18, 22), 0.97, {"loss": step}),), ("loss",), until=40)
    (folder / "stages.json").write_text(json.dumps(kept.to_dict()))
    assert repr(runs.found_stages(watch.load(folder))) == repr(kept)
    none = watch.StagesFound((), ("what was searched",), until=40)
    (folder / "stages.json").write_text(json.dumps(none.to_dict()))
    assert runs.found_stages(watch.load(folder)) == none
    for damage in ({"until": 39}, {"format": "rankrise-stages/0"}, {"stages": [{}]}, {"stages": 3}):
        (folder / "stages.json").write_text(json.dumps(kept.to_dict() | damage))
        run = watch.load(folder)
        assert runs.found_stages(run) == watch.find_stages(run)
