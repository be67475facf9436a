"""The stages of an opened run: searched for once."""

from pathlib import Path

import pytest
from made_runs import everything_in, tracked

from rankrise import runs, watch


def test_found_stages_are_searched_for_once_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = watch.load(tracked(tmp_path, steps=400))
    before = everything_in(tmp_path)
    found = runs.found_stages(run)
    assert found == watch.find_stages(run)
    assert [stage.interval[0] <= 200 <= stage.interval[1] for stage in found] == [True]
    monkeypatch.setattr("rankrise.runs._stages.find_stages", None)
    assert runs.found_stages(run) is found
    assert everything_in(tmp_path) == before
